# Completion of convo's commands, options and conversations in bash. Options and commands are read from its own --help;
# conversations from the daemon, where one answers.
_convo()
{
    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} help command= i
    COMPREPLY=()
    help=$("$1" --help 2>/dev/null)
    local commands options
    commands=$(sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' <<<"$help")
    options=$(sed '/^Commands:/,/^$/d' <<<"$help" | grep -oE -- '--[a-z-]+' | sort -u)
    for ((i = 1; i < COMP_CWORD; i++)); do
        case " ${commands//$'\n'/ } " in *" ${COMP_WORDS[i]} "*) command=${COMP_WORDS[i]} && break ;; esac
    done
    case $previous in
    --token-file | -f | --file)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        return
        ;;
    --to)
        mapfile -t COMPREPLY < <(compgen -W "ram disk" -- "$word")
        return
        ;;
    --effort)
        mapfile -t COMPREPLY < <(compgen -W "none minimal low medium high xhigh max" -- "$word")
        return
        ;;
    --thinking-context)
        mapfile -t COMPREPLY < <(compgen -W "all_turns current_turn" -- "$word")
        return
        ;;
    --truncation)
        mapfile -t COMPREPLY < <(compgen -W "auto disabled" -- "$word")
        return
        ;;
    -c | --conversation) command=show ;;
    -u | --url | -s | --system | -m | --model | --temperature | --top-p | --seed | --max-tokens | --thinking-tokens) return ;;
    esac
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
    elif [[ -z $command ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$word")
    else
        case $command in
        resume | show | rename | delete | evict)
            # compgen expands its words: those that could be more than words are left out.
            mapfile -t COMPREPLY < <(compgen -W "$("$1" list 2>/dev/null | cut -f 1 | grep -xE '[A-Za-z0-9_-]+')" -- "$word")
            ;;
        esac
    fi
}
complete -F _convo convo
