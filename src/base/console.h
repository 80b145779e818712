// The terminal shared by log lines and the progress bar: lines scroll above one status line. Thread safe. Everything is
// written to stderr; stdout is for results.
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
