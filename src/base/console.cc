#include "base/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace octet {
namespace {

struct Console {
  std::mutex mutex;
  std::string status;
};

// Leaked on purpose: threads may still log while static objects are destroyed.
Console& console() {
  static Console* instance = new Console;
  return *instance;
}

void write_all(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

constexpr const char* kClearLine = "\r\x1b[K";

}  // namespace

bool console_is_terminal() {
  static const bool terminal = isatty(STDERR_FILENO) == 1;
  return terminal;
}

int console_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 100;
}

void console_write_line(const std::string& line) {
  Console& shared = console();
  std::lock_guard lock(shared.mutex);
  write_all(shared.status.empty() ? line + "\n" : kClearLine + line + "\n" + shared.status);
}

void console_set_status(const std::string& status) {
  if (!console_is_terminal()) return;
  Console& shared = console();
  std::lock_guard lock(shared.mutex);
  if (status.empty() && shared.status.empty()) return;
  shared.status = status;
  write_all(kClearLine + status);
}

}  // namespace octet
