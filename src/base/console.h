// The terminal shared by log lines and the progress bar: lines scroll, one status line stays below them. Thread safe.
// Everything goes to stderr; stdout belongs to results.
#pragma once

#include <string>

namespace octet {

bool console_is_terminal();
int console_width();  // columns; 100 when unknown

// Writes a line above the status line.
void console_write_line(const std::string& line);

// Shows `status` on the bottom line in place of the previous one; "" removes it. Does nothing without a terminal.
void console_set_status(const std::string& status);

}  // namespace octet
