// Drives a workload against a server of OpenAI's completions or chat completions, and records what its client sees, as
// drive() of load/driver.h does for an engine.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "load/driver.h"
#include "serve/http_client.h"

namespace octet {

struct ServeLoadOptions {
  std::string model, api_key;
  bool chat = false;
  int64_t concurrency = 0;                // most requests in flight; 0: no limit
  int64_t vocab = 0;                      // prompts are random ids below it; 0: random words, about a token each
  std::vector<std::string> prompts = {};  // JSON of texts, ids or lists of messages, taken in turn instead
  uint64_t seed = 1;
  double temperature = 0;
  bool ignore_eos = true;      // of texts without a guide
  std::string guide = {};      // a JSON schema; "": none
  double guided_share = 1;     // of requests that are guided
  double timeout_seconds = 0;  // of a request; 0: none
};

struct ServeErrors {
  int64_t count = 0;
  std::vector<std::string> examples;  // different messages
};

struct ServeLoadResult {
  DriveResult drive;
  std::map<std::string, ServeErrors> errors;  // by "status 429", "connection" or "stream"
  int64_t events = 0;                         // of text
  bool counted = false;                       // a reply had no usage: its tokens are its events
  double cpu_seconds = 0;                     // of this process
};

// Requests are sent by their arrival and no earlier than `concurrency` allows. Nothing a server does throws: what fails
// is a record's and `errors`'.
ServeLoadResult drive_server(serve::HttpClient& client, const Workload& workload, const ServeLoadOptions& options,
                             const DriveProgress& progress = {});

// Authorization and the like of every request.
serve::HttpFields request_fields(const std::string& api_key);

}  // namespace octet
