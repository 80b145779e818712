// Preloaded into a program under test (LD_PRELOAD): a fault at one system call on one path, so that a test need not hit
// a moment by waiting. OCTET_FAULT is "CALL PATH FAULT N": open, write, fsync or rename; the file's path, of rename the
// new one; before the N-th such call kill or stop the process, or let it fail for a full disk (ENOSPC).
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>

namespace {

struct Fault {
  std::string call, path, what;
  std::atomic<int> left = 0;  // calls until then

  Fault() {
    const char* text = std::getenv("OCTET_FAULT");
    int count = 0;
    std::istringstream(text == nullptr ? "" : text) >> call >> path >> what >> count;
    left = count;
  }
};

// Whether the call is to fail.
bool strike(const std::string& call, const std::string& path) {
  static Fault fault;
  if (call != fault.call || path != fault.path || --fault.left != 0) return false;
  if (fault.what == "kill") kill(getpid(), SIGKILL);
  if (fault.what == "stop") kill(getpid(), SIGSTOP);
  errno = ENOSPC;
  return fault.what == "disk";
}

std::string path_of(int file) {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file), ignored);
}

template <typename F>
F* real(F* /*own*/, const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return strike("open", path) ? -1 : real(open, "open")(path, flags, mode);
}

ssize_t write(int file, const void* bytes, size_t count) {
  return strike("write", path_of(file)) ? -1 : real(write, "write")(file, bytes, count);
}

int fsync(int file) { return strike("fsync", path_of(file)) ? -1 : real(fsync, "fsync")(file); }

int rename(const char* from, const char* to) noexcept {
  return strike("rename", to) ? -1 : real(rename, "rename")(from, to);
}
}
