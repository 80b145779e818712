// octet-chat guide: texts and instances against guides, with the time of each mask.
#include "chat/cases.h"

namespace octet {

void add_guide_command(CLI::App&) {}

}  // namespace octet
