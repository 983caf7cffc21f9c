#compdef convod
# Completion of convod's commands and options in zsh.
if (( CURRENT > 2 )) && [[ $words[2] == (token|backup) ]]; then
    case $words[CURRENT-1] in
    token) compadd add list revoke; return ;;
    --scope) compadd all metrics gateway; return ;;
    --priority) compadd interactive background; return ;;
    --data) _files -/; return ;;
    --config) _files; return ;;
    --expires | --inherit | --conversations | --*-bytes | --retain-days) return 1 ;;
    esac
    if [[ $words[2] == backup && $PREFIX != -* ]]; then
        _files -/
    else
        compadd -- ${(f)"$($words[1] $words[2] --help 2>/dev/null | grep -oE '^  --[a-z-]+' | sort -u)"//  }
    fi
    return
fi
(( CURRENT == 2 )) && [[ $PREFIX != -* ]] && compadd token backup
_arguments -s \
    '--model[the model, a GGUF file]:file:_files -g "*.gguf"' \
    '--data[conversations and their KV]:folder:_files -/' \
    '--cache[what can be computed again]:folder:_files -/' \
    '--verify[check a data directory that is not in use]:folder:_files -/' \
    '--repair[the same, and mend what can be]:folder:_files -/' \
    '--config[settings from this file]:file:_files' \
    '--token-file[who may use it]:file:_files' \
    '--backend[what computes]:name:(auto cpu cpu-portable cpu-avx2 cpu-avxvnni cpu-avx512 cuda)' \
    '--numerics[of a GPU]:name:(device exact)' \
    '--accept-kv[stored keys and values that are restored]:which:(same any)' \
    '--kv-type[type of keys and values]:type:(bf16 f16)' \
    '--chat-format[how messages become tokens]:name:(auto chatml llama2 llama3 gemma mistral deepseek harmony granite phi3 phi4 phi4-mini zephyr)' \
    '--log-level[what is told]:level:(error warning info debug)' \
    ${(f)"$($words[1] --help 2>/dev/null | sed -nE 's/^  (--[a-z-]+) .*/\1/p' |
        grep -vE '^--(model|data|cache|verify|repair|config|token-file|backend|numerics|accept-kv|kv-type|chat-format|log-level)$')"}
