// Recipes that a device runs, but not quickly.
#pragma once

#include <string>

#include "ir/target.h"
#include "precision/recipe.h"

namespace octet {

// The note for an FP8 recipe on a CPU without tiles (exec/cpu/tiles.h), with the faster setting; else "".
inline std::string slow_recipe_note(const Recipe& recipe, Device device, bool has_tiles) {
  if (device != Device::kCpu || has_tiles || recipe.scaling == Scaling::kNone) return "";
  return "no AMX-BF16 here, on which FP8 codes are multiplied: recipe " + recipe.name +
         " trains 2 to 3 times slower than bf16 on such cores; precision.recipe=bf16 chooses that";
}

}  // namespace octet
