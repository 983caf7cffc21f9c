/* formats.c - the formats of strings, as regular expressions (RFC 3339 for dates, times and durations, RFC 4122, RFC
 * 3986 without addresses in brackets, RFC 5321 without quoted names, RFC 2673 and 4291 for addresses). */
#include "engine/grammar/expr.h"

#include <string.h>

#define YEAR_LEAP "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                                           \
    "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"                                                             \
    "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
#define DATES "(" DATE "|" YEAR_LEAP "-02-29)"
#define TIME  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4  "(" OCTET "\\.){3}" OCTET
#define H16   "[0-9a-fA-F]{1,4}"
#define LS32  "(" H16 ":" H16 "|" IPV4 ")"
#define LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define UCHAR "([a-zA-Z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2})"
#define PCHAR "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"

const char *format_pattern(const char *name)
{
    static const struct {
        const char *name, *pattern;
    } FORMATS[] = {
        {"date", "^" DATES "$"},
        {"time", "^" TIME "$"},
        {"date-time", "^" DATES "[tT]" TIME "$"},
        {"duration", "^P(([0-9]+D|[0-9]+M([0-9]+D)?|[0-9]+Y([0-9]+M([0-9]+D)?)?)"
                     "(T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))?|"
                     "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)|[0-9]+W)$"},
        {"uuid", "^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"},
        {"uri", "^[a-zA-Z][a-zA-Z0-9+.-]*:(//((" UCHAR "|:)*@)?" UCHAR "*(:[0-9]*)?(/" PCHAR "*)*|"
                "/(" PCHAR "+(/" PCHAR "*)*)?|" PCHAR "+(/" PCHAR "*)*)?(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?$"},
        {"email", "^[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+)*@" LABEL "(\\." LABEL ")*$"},
        {"hostname", "^" LABEL "(\\." LABEL ")*$"},
        {"ipv4", "^" IPV4 "$"},
        {"ipv6", "^((" H16 ":){6}" LS32 "|::(" H16 ":){5}" LS32 "|(" H16 ")?::(" H16 ":){4}" LS32 "|((" H16
                 ":){0,1}" H16 ")?::(" H16 ":){3}" LS32 "|((" H16 ":){0,2}" H16 ")?::(" H16 ":){2}" LS32 "|((" H16
                 ":){0,3}" H16 ")?::" H16 ":" LS32 "|((" H16 ":){0,4}" H16 ")?::" LS32 "|((" H16 ":){0,5}" H16
                 ")?::" H16 "|((" H16 ":){0,6}" H16 ")?::)$"},
    };
    for (size_t i = 0; i < sizeof FORMATS / sizeof FORMATS[0]; i++)
        if (strcmp(FORMATS[i].name, name) == 0)
            return FORMATS[i].pattern;
    return NULL;
}
