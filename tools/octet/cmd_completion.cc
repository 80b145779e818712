// octet completion: completion scripts for shells, generated from the commands, options and settings. Elsewhere shells
// complete file names.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>

#include "commands.h"
#include "train/run_config.h"

namespace octet {
namespace {

struct Word {
  std::string text, meaning;
};

struct Level {
  std::string path;  // " tokenizer train"; "" is the program itself
  std::vector<Word> commands, options;
};

void collect(const CLI::App& app, const std::string& path, std::vector<Level>& levels) {
  Level level{.path = path};
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      level.options.push_back({"--" + name, option->get_description()});
  }
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* command : commands) level.commands.push_back({command->get_name(), command->get_description()});
  levels.push_back(std::move(level));
  for (const CLI::App* command : commands) collect(*command, path + " " + command->get_name(), levels);
}

// Commands that take settings (train.steps=).
bool takes_settings(const Level& level) { return level.path == " train" || level.path == " plan"; }

std::vector<std::string> setting_words() {
  RunConfig config;
  std::vector<std::string> names = settings_of(config).names();
  for (std::string& name : names) name += '=';
  return names;
}

std::string words_of(const Level& level) {
  std::vector<std::string> words;
  for (const Word& word : level.commands) words.push_back(word.text);
  for (const Word& word : level.options) words.push_back(word.text);
  if (takes_settings(level)) {
    for (const std::string& word : setting_words()) words.push_back(word);
  }
  return fmt::format("{}", fmt::join(words, " "));
}

// Case patterns for bash and zsh that match the words typed so far to a command.
std::string known_paths(const std::vector<Level>& levels) {
  std::string patterns;
  for (const Level& level : levels) {
    if (!level.path.empty()) patterns += (patterns.empty() ? "'" : "|'") + level.path + "'";
  }
  return patterns;
}

std::string bash_script(const std::vector<Level>& levels) {
  std::string text = fmt::format(R"(# bash completion of octet, made by: octet completion bash
_octet() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} path="" choices="" index
  for ((index = 1; index < COMP_CWORD; ++index)); do
    case "$path ${{COMP_WORDS[index]}}" in {}) path="$path ${{COMP_WORDS[index]}}" ;; esac
  done
  case "$path" in
)",
                                 known_paths(levels));
  for (const Level& level : levels) text += fmt::format("    '{}') choices='{}' ;;\n", level.path, words_of(level));
  return text + R"(  esac
  COMPREPLY=($(compgen -W "$choices" -- "$current"))
  if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o default -o bashdefault -F _octet octet
)";
}

std::string zsh_script(const std::vector<Level>& levels) {
  std::string text = fmt::format(R"(#compdef octet
# zsh completion of octet, made by: octet completion zsh
_octet() {{
  local octet_path="" word
  local -a choices
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    case "$octet_path $word" in ({}) octet_path="$octet_path $word" ;; esac
  done
  case "$octet_path" in
)",
                                 known_paths(levels));
  for (const Level& level : levels) text += fmt::format("    ('{}') choices=({}) ;;\n", level.path, words_of(level));
  return text + R"(  esac
  compadd -- ${choices:#*=}
  compadd -S '' -- ${(M)choices:#*=}
  _files
}
compdef _octet octet
)";
}

std::string fish_quoted(const std::string& text) {
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' || c == '\\' ? std::string{'\\', c} : std::string{c};
  return quoted + "'";
}

std::string fish_script(const std::vector<Level>& levels) {
  std::string text = "# fish completion of octet, made by: octet completion fish\n";
  for (const Level& level : levels) {
    std::string condition = level.path.empty() ? "__fish_use_subcommand" : "";
    for (size_t at = 0; at < level.path.size();) {
      const size_t end = std::min(level.path.find(' ', at + 1), level.path.size());
      condition += (at > 0 ? "; and " : "") +
                   fmt::format("__fish_seen_subcommand_from {}", level.path.substr(at + 1, end - at - 1));
      at = end;
    }
    for (const Word& word : level.commands)
      text += fmt::format("complete -c octet -n '{}' -a {} -d {}\n", condition, word.text, fish_quoted(word.meaning));
    for (const Word& word : level.options)
      text += fmt::format("complete -c octet -n '{}' -l {} -d {}\n", condition, word.text.substr(2),
                          fish_quoted(word.meaning));
    if (takes_settings(level))
      text += fmt::format("complete -c octet -n '{}' -a '{}'\n", condition, fmt::join(setting_words(), " "));
  }
  return text;
}

}  // namespace

void add_completion_command(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  auto* command = app.add_subcommand("completion", "Print the completion script for a shell");
  command->add_option("shell", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(
      "Examples:\n"
      "  source <(octet completion bash)\n"
      "  octet completion zsh > \"${fpath[1]}/_octet\"\n"
      "  octet completion fish > ~/.config/fish/completions/octet.fish");
  command->callback([&app, shell] {
    std::vector<Level> levels;
    collect(app, "", levels);
    const std::string text = *shell == "bash"  ? bash_script(levels)
                             : *shell == "zsh" ? zsh_script(levels)
                                               : fish_script(levels);
    std::fputs(text.c_str(), stdout);
  });
}

}  // namespace octet
