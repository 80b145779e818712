// The states behind delayed scaling: per tensor K a scale, the amax seen since the last step, and a history of amaxes.
//
// Graphs that train record: the first micro-batch of a step its amax, the others the maximum with it. "apply" advances
// the history once a step, evaluation only reads the scale. Scales and histories are saved in checkpoints; the amax is
// a step's own, as gradients are.
#pragma once

#include <map>
#include <string>

#include "ir/builder.h"
#include "ir/program.h"
#include "precision/recipe.h"

namespace octet {

class DelayedScales {
 public:
  DelayedScales(Program& program, const Recipe& recipe) : program_(program), recipe_(recipe) {}

  // The scale state of tensor `key`, stored in `format`.
  Value scale(Builder& builder, const std::string& key, DType format);
  // In a graph that read its scale: the recorded amax of `key` becomes `amax` in the first micro-batch of a step, and
  // is raised to it in others.
  void record(Builder& builder, const std::string& key, Value amax, bool first);
  // Extends "apply", where there is one: history and new scale.
  void advance();

 private:
  Value state(Builder& builder, StateRole role, const std::string& key, int64_t size = 1, double initial = 0);

  Program& program_;
  const Recipe& recipe_;
  std::map<std::string, DType> formats_;  // by key
};

}  // namespace octet
