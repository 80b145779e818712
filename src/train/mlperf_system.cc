#include "train/mlperf_system.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>

#include "base/file.h"
#include "base/json.h"

namespace octet {
namespace {

// Of the lines "KEY : VALUE" of a file of /proc, or KEY=VALUE.
void each_field(const std::string& path, char separator, const auto& take) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(separator);
    if (at == std::string::npos) continue;
    const auto trimmed = [](const std::string& text) {
      const size_t begin = text.find_first_not_of(" \t\""), end = text.find_last_not_of(" \t\"");
      return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
    };
    take(trimmed(line.substr(0, at)), trimmed(line.substr(at + 1)));
  }
}

}  // namespace

MlperfMachine this_machine() {
  MlperfMachine machine;
  std::set<std::string> sockets;
  int64_t a_socket = 0;
  each_field("/proc/cpuinfo", ':', [&](const std::string& key, const std::string& value) {
    if (key == "processor") ++machine.threads;
    if (key == "model name" && machine.processor.empty()) machine.processor = value;
    if (key == "physical id") sockets.insert(value);
    if (key == "cpu cores") a_socket = std::atoll(value.c_str());
  });
  machine.sockets = std::max<int64_t>(1, std::ssize(sockets));
  machine.cores = a_socket > 0 ? a_socket * machine.sockets : machine.threads;
  each_field("/proc/meminfo", ':', [&](const std::string& key, const std::string& value) {
    if (key == "MemTotal") machine.memory_bytes = std::atoll(value.c_str()) * 1024;
  });
  each_field("/etc/os-release", '=', [&](const std::string& key, const std::string& value) {
    if (key == "PRETTY_NAME") machine.distribution = value;
  });
  const std::string gpus = "/proc/driver/nvidia/gpus";
  for (const std::string& gpu : is_folder(gpus) ? list_folder(gpus) : std::vector<std::string>())
    each_field(gpus + "/" + gpu + "/information", ':', [&](const std::string& key, const std::string& value) {
      if (key == "Model") machine.accelerators.push_back(value);
    });
  return machine;
}

std::string MlperfMachine::platform() const {
  if (!accelerators.empty()) return fmt::format("{}x{}", nodes * std::ssize(accelerators), accelerators[0]);
  return fmt::format("{}x{}", nodes * sockets, processor.empty() ? "CPU" : processor);
}

std::string MlperfMachine::json(const MlperfSubmission& s, const std::string& name, const std::string& build) const {
  nlohmann::ordered_json j;
  j["submitter"] = s.org, j["division"] = s.division, j["status"] = s.status, j["system_name"] = name;
  j["number_of_nodes"] = std::to_string(nodes);
  j["host_processors_per_node"] = std::to_string(sockets), j["host_processor_model_name"] = processor;
  j["host_processor_core_count"] = std::to_string(cores / sockets);
  j["host_processor_vcpu_count"] = std::to_string(threads);
  j["host_processor_frequency"] = "", j["host_processor_caches"] = "", j["host_processor_interconnect"] = "";
  j["host_memory_capacity"] = fmt::format("{} GB", (memory_bytes + 500'000'000) / 1'000'000'000);
  j["host_memory_configuration"] = "", j["host_storage_type"] = "", j["host_storage_capacity"] = "";
  j["host_networking"] = "", j["host_networking_topology"] = "";
  j["accelerators_per_node"] = std::to_string(accelerators.size());
  j["accelerator_model_name"] = accelerators.empty() ? "" : accelerators[0];
  for (const char* key : {"accelerator_host_interconnect", "accelerator_frequency", "accelerator_on-chip_memories",
                          "accelerator_memory_configuration", "accelerator_memory_capacity", "accelerator_interconnect",
                          "accelerator_interconnect_topology", "cooling", "hw_notes"})
    j[key] = "";
  j["framework"] = build.substr(0, build.find('\n')), j["other_software_stack"] = "";
  j["operating_system"] = distribution, j["sw_notes"] = "";
  return j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace octet
