// octet-chat: stages of the chat core on files of cases, for comparing them with other implementations.
#include <cstdio>
#include <exception>

#include "chat/cases.h"

namespace {

constexpr const char* kExamples = R"(Examples:
  octet-chat template cases.jsonl
  octet-chat parse --cuts 7 cases.jsonl
  octet-chat guide --tokenizer path/to/model schemas.jsonl
)";

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Chat templates, parsers of replies and guides, on files of cases: a JSON answer a line.", "octet-chat");
  app.footer(kExamples);
  app.require_subcommand(1);
  octet::add_template_command(app);
  octet::add_parse_command(app);
  octet::add_guide_command(app);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "octet-chat: %s\n", error.what());
    return 1;
  }
}
