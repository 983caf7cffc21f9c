# Completion of convod's options in bash. They are read from its own --help, so that they are always those of the program.
_convod()
{
    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    COMPREPLY=()
    if [[ $previous == = ]]; then
        previous=${COMP_WORDS[COMP_CWORD - 2]}
    elif [[ $word == = ]]; then
        previous=${COMP_WORDS[COMP_CWORD - 1]} word=
    fi
    if [[ ${COMP_WORDS[1]} == token && $COMP_CWORD -gt 1 ]]; then
        case $previous in
        token) mapfile -t COMPREPLY < <(compgen -W 'add list revoke' -- "$word") ;;
        --priority) mapfile -t COMPREPLY < <(compgen -W 'interactive background' -- "$word") ;;
        --scope) mapfile -t COMPREPLY < <(compgen -W 'all metrics gateway' -- "$word") ;;
        --data)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -d -- "$word")
            ;;
        --expires | --inherit | --config | --conversations | --ledger-bytes | --disk-bytes | --ram-bytes | --kv-bytes | --retain-days) ;;
        *) mapfile -t COMPREPLY < <(compgen -W '--data --config --expires --scope --priority --inherit --conversations --ledger-bytes --disk-bytes --ram-bytes --kv-bytes --retain-days --help' -- "$word") ;;
        esac
        return
    fi
    if [[ ${COMP_WORDS[1]} == backup && $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W '--with-kv --data --config --help' -- "$word")
        return
    fi
    case $previous in
    --model | --config | --token-file)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        ;;
    --data | --cache | --verify | --repair | backup | --with-kv)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -d -- "$word")
        ;;
    --backend) mapfile -t COMPREPLY < <(compgen -W 'auto cpu cpu-portable cpu-avx2 cpu-avxvnni cpu-avx512 cuda' -- "$word") ;;
    --numerics) mapfile -t COMPREPLY < <(compgen -W 'device exact' -- "$word") ;;
    --accept-kv) mapfile -t COMPREPLY < <(compgen -W 'same any' -- "$word") ;;
    --kv-type) mapfile -t COMPREPLY < <(compgen -W 'bf16 f16' -- "$word") ;;
    --chat-format) mapfile -t COMPREPLY < <(compgen -W 'auto chatml llama2 llama3 gemma mistral deepseek harmony granite phi3 phi4 phi4-mini zephyr' -- "$word") ;;
    --log-level) mapfile -t COMPREPLY < <(compgen -W 'error warning info debug' -- "$word") ;;
    *)
        local options
        options=$("$1" --help 2>/dev/null | grep -oE '^  --[a-z-]+')
        case " ${options//$'\n'/ } " in
        *" $previous "*) [[ $previous =~ ^--(help|version|check-config|profile)$ ]] || return ;;
        esac
        [[ $COMP_CWORD -gt 1 ]] || options+=" token backup"
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
        ;;
    esac
}
complete -F _convod convod
