// Counters, gauges and histograms in the text format that Prometheus reads.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace octet::serve {

class Counter {
 public:
  void add(double amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_ = 0;
};

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double value, int64_t times = 1);

 private:
  friend class Metrics;
  const std::vector<double> bounds_;  // upper ones, ascending
  std::vector<std::atomic<int64_t>> counts_;
  std::atomic<double> sum_ = 0;
};

// What is measured, in the order it was added. Adding is for one thread, before anything else; counting and printing
// for any.
class Metrics {
 public:
  // Names begin with this: "octet_" or "vllm:".
  explicit Metrics(std::string prefix) : prefix_(std::move(prefix)) {}

  // `labels`: as printed, reason="length". Metrics of one name stand together and share its help. Names of counters end
  // in _total. References stay valid.
  Counter& counter(const std::string& name, const std::string& help, const std::string& labels = {});
  Histogram& histogram(const std::string& name, const std::string& help, std::vector<double> bounds);
  // Read when it is printed.
  void gauge(const std::string& name, const std::string& help, std::function<double()> read,
             const std::string& labels = {});
  // The same for a counter that is kept elsewhere.
  void total(const std::string& name, const std::string& help, std::function<double()> read,
             const std::string& labels = {});

  // Its labels too are made when it is printed.
  void info(const std::string& name, const std::string& help, std::function<std::string()> labels,
            std::function<double()> read);

  std::string print() const;

 private:
  struct Series {
    std::string labels;
    std::function<double()> read;
    const Histogram* histogram = nullptr;
    std::function<std::string()> made_labels = {};
  };
  struct Family {
    std::string name, help, type;
    std::vector<Series> series;
  };
  Family& family(const std::string& name, const std::string& help, const char* type);

  const std::string prefix_;
  std::vector<Family> families_;
  std::deque<Counter> counters_;
  std::deque<Histogram> histograms_;
};

// A label's value with what Prometheus wants escaped: reason="a\"b".
std::string metric_label(std::string_view name, std::string_view value);

}  // namespace octet::serve
