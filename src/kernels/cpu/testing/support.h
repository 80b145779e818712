// The support table of docs/support.md: which row runs each op in each type, as the case list sees it. Pure text.
#pragma once

#include <string>

namespace octet::cpu {

std::string support_table();

}  // namespace octet::cpu
