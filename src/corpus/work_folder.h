// The output folder of a job over a corpus, which may be killed at any time and started again, in one process or many:
// DIR/.work holds job.json, which says what the job is, and the files of its stages. A file is there whole or not at
// all, and what is there is not made again. Another job in the same folder is refused.
#pragma once

#include <string>
#include <vector>

#include "io/corpus.h"

namespace octet {

struct Shard {
  int64_t index = 0, count = 1;  // 0 <= index < count
};
Shard parse_shard(const std::string& text);  // I/N

class WorkFolder {
 public:
  // `job`: JSON of all that changes the result besides the inputs, whose paths, sizes and times are added. Throws
  // kInvalidArgument where the folder holds another job, or outputs of no job.
  WorkFolder(std::string folder, const std::string& job, const std::vector<CorpusFile>& files);

  bool finished() const { return finished_; }  // DIR/report.json is there: nothing is left to do
  std::string path(const std::string& name) const { return folder_ + "/.work/" + name; }
  std::string kept(size_t file) const { return folder_ + "/" + names_[file]; }
  std::string dropped(size_t file) const { return folder_ + "/dropped/" + names_[file]; }
  std::string report() const;              // text of DIR/report.json
  void finish(const std::string& report);  // a JSON object: writes it, with the job, and removes DIR/.work

 private:
  std::string folder_, job_;
  std::vector<std::string> names_;
  bool finished_ = false;
};

}  // namespace octet
