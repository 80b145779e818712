#include "io/manifest.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/json.h"
#include "base/threads.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifestName = "manifest.json";
constexpr const char* kFormat = "octet-folder";
constexpr int64_t kMaxManifestBytes = 256 << 20;
constexpr size_t kMaxReportedFiles = 8;

// Read in pieces: a memory map of a checkpoint would count as this process's memory.
uint32_t file_checksum(const std::string& path) {
  const int64_t size = file_size(path);
  std::ifstream file(path, std::ios::binary);
  std::vector<char> piece(1 << 20);
  uint32_t crc = 0;
  int64_t done = 0;
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    crc = crc32c(piece.data(), file.gcount(), crc);
    done += file.gcount();
  }
  check(done == size, ErrorCode::kIo, "{}: only {} of {} bytes can be read", path, done, size);
  return crc;
}

// Relative names of all regular files below `folder`, sorted, and the folders themselves.
void walk(const std::string& folder, std::vector<std::string>* files, std::vector<std::string>* folders) {
  std::error_code error;
  folders->push_back(folder);
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->is_directory(error))
      folders->push_back(entry->path().string());
    else
      files->push_back(fs::relative(entry->path(), folder, error).generic_string());
    if (error) break;
  }
  check(!error, ErrorCode::kIo, "{}: cannot list this folder: {}", folder, error.message());
  std::sort(files->begin(), files->end());
}

bool is_inside(const std::string& name) {
  if (name.empty() || name.front() == '/' || name.find('\0') != std::string::npos) return false;
  for (const fs::path& part : fs::path(name))
    if (part == ".." || part == ".") return false;
  return true;
}

// Checksum of the manifest's other fields, against damage of the manifest itself.
uint32_t own_checksum(nlohmann::ordered_json root) {
  root.erase("manifest_crc32c");
  std::string text = root.dump();
  return crc32c(text.data(), static_cast<int64_t>(text.size()));
}

}  // namespace

void write_manifest(const std::string& folder, const std::string& info_json, const std::vector<ManifestFile>& known) {
  nlohmann::ordered_json root;
  root["format"] = kFormat;
  const nlohmann::json info = parse_json(info_json, folder + ": manifest info");
  check(info.is_object(), ErrorCode::kInvalidArgument, "{}: manifest info must be a JSON object", folder);
  root["info"] = info;
  std::vector<std::string> names, folders;
  walk(folder, &names, &folders);
  std::erase(names, kManifestName);
  for (const ManifestFile& file : known) {
    const std::string path = folder + "/" + file.name;
    const int64_t here = path_exists(path) ? file_size(path) : 0;
    check(here == file.bytes, ErrorCode::kIo, "{}: {} bytes here, but its writer wrote {}", path, here, file.bytes);
    std::erase(names, file.name);
  }
  std::vector<ManifestFile> files(names.size());
  parallel_for(static_cast<int64_t>(names.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const std::string path = folder + "/" + names[i];
      files[i] = {names[i], file_size(path), file_checksum(path)};
    }
  });
  files.insert(files.end(), known.begin(), known.end());
  std::ranges::sort(files, {}, &ManifestFile::name);
  root["files"] = nlohmann::ordered_json::array();
  for (const ManifestFile& file : files)
    root["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"crc32c", file.crc32c}});
  try {
    root["manifest_crc32c"] = own_checksum(root);
    write_file(folder + "/" + kManifestName, root.dump(1) + "\n");
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kInvalidArgument, "{}: a file name is not UTF-8: {}", folder, error.what());
  }
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  check(path_exists(path), ErrorCode::kNotFound,
        "{}: has no {}: it was never finished, or is not a folder of this kind", folder, kManifestName);
  const std::string text = read_file(path, kMaxManifestBytes);
  parse_json(text, path, true);  // for its errors; the checksum below depends on the order of members
  const auto root = nlohmann::ordered_json::parse(text);
  auto require = [&](bool condition, const char* what) { check(condition, ErrorCode::kCorrupt, "{}: {}", path, what); };
  require(root.is_object() && root.value("format", nlohmann::ordered_json()) == kFormat, "is not a folder manifest");
  require(root.contains("manifest_crc32c") && root["manifest_crc32c"] == own_checksum(root),
          "its own checksum does not match: the manifest is damaged");
  require(root.contains("info") && root["info"].is_object(), "member 'info' is missing");
  require(root.contains("files") && root["files"].is_array(), "member 'files' is missing");
  Manifest manifest{.info = root["info"].dump()};
  std::set<std::string> seen;
  for (const nlohmann::json row : root["files"]) {
    ManifestFile file{.name = json_get<std::string>(row, "name", path),
                      .bytes = json_get<int64_t>(row, "bytes", path),
                      .crc32c = json_get<uint32_t>(row, "crc32c", path)};
    require(is_inside(file.name) && file.bytes >= 0, "lists a file outside the folder or of negative size");
    require(seen.insert(file.name).second, "lists a file twice");
    manifest.files.push_back(std::move(file));
  }
  return manifest;
}

bool has_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  if (!path_exists(path)) return false;
  const auto root = nlohmann::json::parse(read_file(path, kMaxManifestBytes), nullptr, /*allow_exceptions=*/false);
  return root.is_discarded() ||
         (root.is_object() && (root.contains("manifest_crc32c") || root.value("format", root) == kFormat));
}

Manifest verify_folder(const std::string& folder, Verify depth, const std::set<std::string>& unread) {
  Manifest manifest = read_manifest(folder);
  const auto count = static_cast<int64_t>(manifest.files.size());
  std::vector<std::string> faults(manifest.files.size());
  parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const ManifestFile& file = manifest.files[i];
      const std::string path = folder + "/" + file.name;
      if (unread.contains(file.name)) continue;
      try {
        const int64_t bytes = file_size(path);
        if (bytes != file.bytes)
          faults[i] = fmt::format("{}: {} bytes instead of {}", file.name, bytes, file.bytes);
        else if (depth == Verify::kChecksums && file_checksum(path) != file.crc32c)
          faults[i] = fmt::format("{}: content does not match its checksum", file.name);
      } catch (const Error& error) {
        faults[i] = error.code() == ErrorCode::kNotFound ? file.name + ": missing" : error.message();
      }
    }
  });
  std::erase(faults, "");
  if (faults.empty()) return manifest;
  std::string report;
  for (size_t i = 0; i < std::min(faults.size(), kMaxReportedFiles); ++i) report += (i ? "; " : "") + faults[i];
  fail(ErrorCode::kCorrupt, "{}: {} of {} files are damaged: {}", folder, faults.size(), count, report);
}

FolderWriter::FolderWriter(std::string path) : path_(std::move(path)) {
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
  temporary_ = path_ + ".tmp";
  remove_path(temporary_);
  make_folders(temporary_);
}

FolderWriter::~FolderWriter() {
  if (committed_) return;
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void FolderWriter::commit(const std::string& info_json, const std::vector<ManifestFile>& known) {
  check(!committed_, ErrorCode::kInternal, "{}: committed twice", path_);
  write_manifest(temporary_, info_json, known);
  std::vector<std::string> files, folders;
  walk(temporary_, &files, &folders);
  for (const ManifestFile& file : known) std::erase(files, file.name);  // synced by their writers
  for (const std::string& name : files) sync_path(file(name));
  for (const std::string& folder : folders) sync_path(folder);
  if (!path_exists(path_)) {
    rename_path(temporary_, path_);
  } else if (renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) {
    // The old folder now has the temporary name. An error removing it does not fail the completed commit.
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  } else {
    // File systems without the exchange: between the two renames a crash leaves the old folder under ".old".
    const std::string old = path_ + ".old";
    remove_path(old);
    rename_path(path_, old);
    try {
      rename_path(temporary_, path_);
    } catch (const Error&) {
      rename_path(old, path_);
      throw;
    }
    std::error_code ignored;
    fs::remove_all(old, ignored);
  }
  committed_ = true;
  sync_path(parent_folder(path_));
}

}  // namespace octet
