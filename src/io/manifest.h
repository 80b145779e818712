// Atomic folders: a checkpoint is written into X.tmp, completed with a manifest.json of every file's size and CRC-32C,
// synced and renamed to X. Readers verify the manifest first. Independent of the files' contents.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/file.h"

namespace octet {

struct ManifestFile {
  std::string name;  // relative to the folder, with '/' in subfolders
  int64_t bytes = 0;
  uint32_t crc32c = 0;
  bool operator==(const ManifestFile&) const = default;
};

struct Manifest {
  std::string info = "{}";          // a JSON object of the writer: step, settings, ranks
  std::vector<ManifestFile> files;  // sorted by name
};

// Checksums every file below `folder` but the `known` ones, whose writers did (and have synced them), and writes
// manifest.json, last and durably. Several GB/s per core. Throws kIo where a known file is missing or of another size
// than its writer says.
void write_manifest(const std::string& folder, const std::string& info_json,
                    const std::vector<ManifestFile>& known = {});

// Parses and checks the manifest itself; the listed files are not opened. kNotFound: the folder has none (incomplete
// or of another program); kCorrupt: damaged.
Manifest read_manifest(const std::string& folder);

enum class Verify { kSizes, kChecksums };

// Reads the manifest and compares every listed file but those in `unread`; kCorrupt names each file that is missing, of
// another size or (with kChecksums) of other content. Files that the manifest does not list are ignored.
Manifest verify_folder(const std::string& folder, Verify depth = Verify::kChecksums,
                       const std::set<std::string>& unread = {});

// Whether there is a manifest of this format, valid or damaged; other programs' manifest.json do not count.
bool has_manifest(const std::string& folder);

// Writes path + ".tmp" (emptied first); commit() renames it to `path`, replacing an older folder atomically. Without
// commit() the temporary folder is removed and `path` is unchanged.
class FolderWriter {
 public:
  explicit FolderWriter(std::string path);
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;
  ~FolderWriter();

  const std::string& folder() const { return temporary_; }  // write files here
  std::string file(const std::string& name) const { return temporary_ + "/" + name; }
  void commit(const std::string& info_json = "{}", const std::vector<ManifestFile>& known = {});

 private:
  std::string path_, temporary_;
  bool committed_ = false;
};

}  // namespace octet
