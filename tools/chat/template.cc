// octet-chat template: renders chat templates.
#include "chat/cases.h"

namespace octet {

void add_template_command(CLI::App&) {}

}  // namespace octet
