// An open engine with what requests need beside it.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "octet/engine.h"
#include "process.h"
#include "serve/api.h"

namespace octet::python {

// Shared by the object of Python and by calls under way; goes with the last of them, in a thread without the GIL.
struct Opened {
  Opened() = default;
  Opened(const Opened&) = delete;
  ~Opened();

  std::unique_ptr<Tokenizer> tokenizer;  // none: ids only
  std::unique_ptr<Engine> engine;
  serve::ApiModel model;
  EnginePlan plan;
  std::string folder;
  std::atomic<bool> closing = false;
};

class PyEngine {
 public:
  // Rows of EngineOptions and what the module adds to them, as keyword arguments.
  PyEngine(nb::handle path, nb::dict options);
  ~PyEngine() { close(); }
  PyEngine(const PyEngine&) = delete;
  PyEngine& operator=(const PyEngine&) = delete;

  void close();
  bool closed() const { return opened_ == nullptr || opened_->closing; }
  // A call's share of the engine, given back without the GIL. Throws for one that is closed.
  class Use {
   public:
    explicit Use(std::shared_ptr<Opened> opened) : opened_(std::move(opened)) {}
    Use(Use&&) = default;
    ~Use();
    Opened& operator*() const { return *opened_; }
    Opened* operator->() const { return opened_.get(); }

   private:
    std::shared_ptr<Opened> opened_;
  };
  Use use() const;
  std::shared_ptr<Opened> share() const;  // for what outlives the object of Python

 private:
  std::shared_ptr<Opened> opened_;
  std::shared_ptr<void> at_end_;
};

std::string engine_signature();
std::string engine_doc();

}  // namespace octet::python
