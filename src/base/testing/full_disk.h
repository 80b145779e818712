// Work on a disk that is full after ever more bytes.
#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <functional>

#include "base/file.h"
#include "base/testing/test_error.h"

namespace octet {

// Repeats `work` with room for `first` bytes, and `step` more each time, until it succeeds. Each failure must say that
// the disk is full. Returns how many there were.
inline int failures_on_full_disks(int64_t first, int64_t step, const std::function<void()>& work) {
  for (int failures = 0;; ++failures) {
    inject_write_fault(first + failures * step, ENOSPC);
    const std::string error = error_of(work);
    inject_write_fault(-1, 0);
    if (error == "(no error)") return failures;
    EXPECT_NE(error.find("the disk is full"), std::string::npos) << error;
  }
}

}  // namespace octet
