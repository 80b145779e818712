// The support table of docs/support.md: the row that runs each op in each type of the case list. Pure text.
#pragma once

#include <string>

namespace octet::cpu {

std::string support_table();

}  // namespace octet::cpu
