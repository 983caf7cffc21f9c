#compdef convo
# Completion of convo's commands, options and conversations in zsh. Options and commands are read from its own --help;
# conversations from the daemon, where one answers.
local help=$($words[1] --help 2>/dev/null) word
local -a commands options
commands=(${(f)"$(sed -nE '/^Commands:/,/^$/s/^  ([a-z]+) .*  +(.*)$/\1:\2/p' <<<"$help")"})
options=(${(f)"$(sed '/^Commands:/,/^$/d' <<<"$help" | grep -oE -- '--[a-z-]+' | sort -u)"})

case $words[CURRENT-1] in
--token-file | -f | --file) _files; return ;;
--to) compadd ram disk; return ;;
--effort) compadd none minimal low medium high xhigh max; return ;;
--thinking-context) compadd all_turns current_turn; return ;;
--truncation) compadd auto disabled; return ;;
-c | --conversation) compadd -- ${(f)"$($words[1] list 2>/dev/null | cut -f 1)"}; return ;;
-u | --url | -s | --system | -m | --model | --temperature | --top-p | --seed | --max-tokens | --thinking-tokens) return 1 ;;
esac
if [[ $PREFIX == -* ]]; then
    compadd -- $options
    return
fi
for word in $words[2,CURRENT-1]; do
    case $word in
    resume | show | rename | delete | evict)
        compadd -- ${(f)"$($words[1] list 2>/dev/null | cut -f 1)"}
        return ;;
    esac
    (( ${commands[(I)$word:*]} )) && return 1
done
_describe command commands
