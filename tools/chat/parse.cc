// octet-chat parse: parses replies, whole or cut.
#include "chat/cases.h"

namespace octet {

void add_parse_command(CLI::App&) {}

}  // namespace octet
