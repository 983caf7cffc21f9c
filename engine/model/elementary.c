/* elementary.c - see docs/numerics.md, "Rotary tables". Pure functions; products and sums are rounded one by one. */
#include <math.h>

#include "engine/model/elementary.h"

/* ln 2: the high part is short, so that its products with exponents are exact. */
#define LN2_HI 0x1.62e42feep-1
#define LN2_LO 0x1.a39ef35793c76p-33
#define LOG2_E 0x1.71547652b82fep+0

#define LOG_TERMS 12 /* s^2 <= 0.0295: the next one is below 2^-60 */
#define EXP_TERMS 14 /* |r| <= 0.3466: likewise */

/* x = 2^e * m, m within [sqrt(1/2), sqrt(2)): ln m = 2 atanh(s), s = (m - 1) / (m + 1), by its series. */
double elementary_log(double x)
{
    int e;
    double m = frexp(x, &e), sum = 0;
    if (m < M_SQRT1_2) {
        m *= 2;
        e--;
    }
    double s = (m - 1) / (m + 1), z = s * s;
    for (int i = LOG_TERMS - 1; i >= 0; i--)
        sum = 1.0 / (2 * i + 1) + z * sum;
    return e * LN2_HI + (e * LN2_LO + 2 * s * sum);
}

/* x = n ln 2 + r: e^r by its series, times 2^n. */
double elementary_exp(double x)
{
    double n = rint(x * LOG2_E), r = (x - n * LN2_HI) - n * LN2_LO, sum = 1;
    for (int i = EXP_TERMS; i > 0; i--)
        sum = 1 + r / i * sum;
    return ldexp(sum, (int)n);
}
