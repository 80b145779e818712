// The adapters that an engine has in host memory, by their names, each as the bytes that its slot of the device's
// tables gets (passes/serving_adapters.h).
//
// Used from any thread: requests find their adapter when they are submitted and hold it until they have ended. So an
// adapter that is unloaded ends when its last request does. Each loaded one has an id of its own, by which cached
// blocks and slots are known: a name that is loaded again finds nothing of the old one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "infer/host_adapter.h"
#include "model/adapter.h"
#include "octet/engine.h"
#include "passes/serving_adapters.h"
#include "weights/weights.h"

namespace octet {

// An adapter's parameters, by their names (model/adapter.h).
using AdapterTensors = std::map<std::string, ParamView>;

// Of the base, [out, in]: what DoRA's norms are of.
using BaseWeight = std::function<std::vector<float>(const std::string& param)>;

class AdapterStore {
 public:
  AdapterStore(AdapterTables tables, BaseWeight base, ModelConfig config = {})
      : tables_(std::move(tables)), base_(std::move(base)), config_(std::move(config)) {}

  // Throws kInvalidArgument or kUnsupported, with the adapter's name and what would do: for a name in use (but to
  // `replace` it), parameters that are not the model's or are missing, wrong shapes, values that are not finite, a rank
  // above the tables', what rows of a batch cannot have each for itself.
  void load(const std::string& name, const AdapterSpec& spec, const AdapterTensors& tensors, bool replace = false,
            const std::string& folder = {});
  void load(const std::string& name, const std::string& folder, bool replace = false);  // a folder of PEFT
  void unload(const std::string& name);                                                 // throws as find() does
  // Throws kNotFound with the names that are loaded.
  std::shared_ptr<const HostAdapter> find(const std::string& name) const;
  std::vector<AdapterFacts> list() const;  // by name
  const AdapterTables& tables() const { return tables_; }

 private:
  AdapterTables tables_;
  BaseWeight base_;
  ModelConfig config_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const HostAdapter>> adapters_;
  uint64_t last_id_ = 0;
};

// What an engine's options ask for. Throws for adapters that cannot be read or that the options contradict.
struct AdapterPlan {
  AdapterTables tables = {};  // empty: none can be loaded
  std::vector<std::string> targets = {};
};
AdapterPlan plan_adapters(const EngineOptions& options, const ModelConfig& config);
// With those given loaded. `model`: the base's folder, "" with random weights. Null where the tables are empty.
std::unique_ptr<AdapterStore> open_adapters(const EngineOptions& options, const ModelConfig& config,
                                            const std::string& model, const AdapterTables& tables);

}  // namespace octet
