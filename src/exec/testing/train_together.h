// For tests only: tiny programs trained at the same time, each by an executor of its own in a thread of its own.
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "exec/testing/tiny_program.h"

namespace octet::tiny {

struct Trained {
  std::vector<double> losses;
  std::map<std::string, std::vector<std::byte>> states;
  bool operator==(const Trained&) const = default;
};

using MakeExecutor = std::function<std::unique_ptr<Executor>()>;

// Whole steps of the weights of seed 7 + i; `before_step` is called before each, and before the executor is made.
inline Trained train_alone(
    const MakeExecutor& make, size_t i, const std::function<void()>& before_step = [] {}) {
  constexpr int kSteps = 5;
  Trained trained;
  before_step();
  const std::unique_ptr<Executor> executor = make();
  initialize(*executor, 7 + i);
  for (int step = 0; step < kSteps; ++step) {
    before_step();
    for (const double loss : train(*executor, 1)) trained.losses.push_back(loss);
  }
  for (const StateEntry& entry : executor->program().states())
    trained.states[entry.name] = state(*executor, entry.name);
  return trained;
}

// The threads make their executors together and begin every step together. Throws what one of them throws.
inline std::vector<Trained> train_together(const std::vector<MakeExecutor>& makes) {
  std::barrier all(std::ssize(makes));
  std::vector<Trained> trained(makes.size());
  std::vector<std::exception_ptr> errors(makes.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < makes.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        trained[i] = train_alone(makes[i], i, [&] { all.arrive_and_wait(); });
      } catch (...) {
        errors[i] = std::current_exception();
        all.arrive_and_drop();  // the others need not wait for it
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return trained;
}

// Each gives the bits together that it gives alone. Returns what they gave.
inline std::vector<Trained> expect_the_bits_of_each_alone(const std::vector<MakeExecutor>& makes) {
  std::vector<Trained> together = train_together(makes);
  for (size_t i = 0; i < makes.size(); ++i) {
    const Trained alone = train_alone(makes[i], i);
    EXPECT_EQ(together[i].losses, alone.losses) << "executor " << i;
    EXPECT_EQ(together[i].states, alone.states) << "executor " << i;
    EXPECT_LT(alone.losses.back(), alone.losses.front()) << "nothing was learned: the comparison would say little";
  }
  return together;
}

}  // namespace octet::tiny
