// The only file that sees NCCL.
#include "dist/cuda/nccl.h"

#include "base/error.h"

#ifdef OCTET_NCCL
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "dist/cuda/peer_group.h"
#include "dist/cuda/peer_link.h"
#include "kernels/cuda/context.h"

namespace octet {
namespace {

constexpr int kWanted = 22000;
constexpr const char* kName = "libnccl.so.2";

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

struct Nccl {
  int version = 0;
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRank) init_rank;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;

  explicit Nccl(const std::vector<std::string>& paths) {
    std::string tried;
    for (const std::string& path : paths)
      if (open(path, tried)) return;
    fail(ErrorCode::kUnsupported,
         "several GPUs need {} (NCCL {} or later): looked for as {}{}; install NCCL (Debian: libnccl2), or the Python "
         "package nvidia-nccl-cu13, or add its folder to LD_LIBRARY_PATH",
         kName, version_text(kWanted), fmt::join(paths, ", "), tried.empty() ? ", and not found" : tried);
  }

  void check(ncclResult_t status, const std::string& what, ncclComm_t of = nullptr) const {
    if (status == ncclSuccess) [[likely]]
      return;
    const char* last = last_error(of);
    fail(ErrorCode::kIo, "NCCL {}: {}: {} ({}); NCCL_DEBUG=INFO says more", version_text(version), what,
         error_string(status), last != nullptr && *last != 0 ? last : "no details");
  }

 private:
  // Adds to `tried` what is there and does not do.
  bool open(const std::string& path, std::string& tried) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    bool complete = true;
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      complete = complete && function != nullptr;
    };
    find("ncclGetVersion", get_version);
    find("ncclGetErrorString", error_string);
    find("ncclGetLastError", last_error);
    find("ncclGetUniqueId", get_unique_id);
    find("ncclCommInitRank", init_rank);
    find("ncclCommDestroy", destroy);
    find("ncclCommAbort", abort);
    find("ncclCommGetAsyncError", async_error);
    find("ncclGroupStart", group_start);
    find("ncclGroupEnd", group_end);
    find("ncclAllReduce", all_reduce);
    find("ncclReduceScatter", reduce_scatter);
    find("ncclAllGather", all_gather);
    find("ncclSend", send);
    find("ncclRecv", receive);
    if (complete && get_version(&version) == ncclSuccess && version >= kWanted) return true;
    tried += fmt::format("; {} is {}", path, complete ? "version " + version_text(version) : "not a whole NCCL");
    dlclose(library);
    return false;
  }
};

const Nccl& nccl() {
  static const Nccl library = [] {
    // All connections are made with a communicator: its memory is known then, and no later call waits for peers. What
    // the environment says wins.
    setenv("NCCL_RUNTIME_CONNECT", "0", /*replace=*/0);
    std::vector<std::string> places = {kName};
    const std::vector<std::string> wheels = cuda::python_libraries("nccl", kName);
    places.insert(places.end(), wheels.begin(), wheels.end());
    return Nccl(places);
  }();
  return library;
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return ncclFloat32;
    case DType::kBF16: return ncclBfloat16;
    case DType::kF16: return ncclFloat16;
    case DType::kF64: return ncclFloat64;
    case DType::kI32: return ncclInt32;
    default: fail(ErrorCode::kInternal, "NCCL: no sums of {}", dtype_name(dtype));
  }
}

class NcclGroup final : public cuda::RankGroup {
 public:
  NcclGroup(const ncclUniqueId& id, int64_t size, int64_t own, std::string where)
      : RankGroup(size, own), where_(std::move(where)) {
    nccl_.check(nccl_.init_rank(&comm_, static_cast<int>(size), id, static_cast<int>(own)),
                "making a communicator of " + where_);
  }
  ~NcclGroup() override {
    if (comm_ != nullptr) nccl_.destroy(comm_);
  }

  void all_reduce(const void* x, void* y, int64_t count, DType dtype, Stream stream) override {
    check(nccl_.all_reduce(x, y, static_cast<size_t>(count), type_of(dtype), ncclSum, comm(), stream), "all_reduce");
  }
  void reduce_scatter(const void* x, void* y, int64_t count, DType dtype, Stream stream) override {
    check(nccl_.reduce_scatter(x, y, static_cast<size_t>(count), type_of(dtype), ncclSum, comm(), stream),
          "reduce_scatter");
  }
  void all_gather(const void* x, void* y, int64_t bytes, Stream stream) override {
    check(nccl_.all_gather(x, y, static_cast<size_t>(bytes), ncclUint8, comm(), stream), "all_gather");
  }
  void all_to_all(const void* x, void* y, int64_t bytes, Stream stream) override {
    for (int64_t i = 0; i < size(); ++i) {
      const auto count = static_cast<size_t>(bytes);
      const int other = static_cast<int>(i);
      check(nccl_.send(static_cast<const std::byte*>(x) + i * bytes, count, ncclUint8, other, comm(), stream), "send");
      check(nccl_.receive(static_cast<std::byte*>(y) + i * bytes, count, ncclUint8, other, comm(), stream), "receive");
    }
  }
  void coalesce(FunctionRef<void()> calls, std::span<std::byte>) override {
    comm();
    check(nccl_.group_start(), "beginning a call");
    try {
      calls();
    } catch (...) {
      nccl_.group_end();
      throw;
    }
    check(nccl_.group_end(), "running a call");
  }

  // To, and from, the other one of two.
  void send(const void* x, int64_t bytes, Stream stream) {
    check(nccl_.send(x, static_cast<size_t>(bytes), ncclUint8, static_cast<int>(1 - own()), comm(), stream), "send");
  }
  void receive(void* y, int64_t bytes, Stream stream) {
    check(nccl_.receive(y, static_cast<size_t>(bytes), ncclUint8, static_cast<int>(1 - own()), comm(), stream),
          "receive");
  }

  void check_async() const {
    ncclResult_t state = ncclSuccess;
    check(nccl_.async_error(comm(), &state), "asking for errors");
    if (state != ncclInProgress) check(state, "a peer or a link failed");
  }
  void abort() {
    nccl_.abort(std::exchange(comm_, nullptr));  // whatever it answers, the communicator is gone
  }

 private:
  ncclComm_t comm() const {
    octet::check(comm_ != nullptr, ErrorCode::kIo, "NCCL: the communicator of {} was aborted", where_);
    return comm_;
  }
  void check(ncclResult_t status, const char* what) const {
    if (status != ncclSuccess) nccl_.check(status, fmt::format("{}: {}", where_, what), comm_);
  }

  const Nccl& nccl_ = nccl();
  std::string where_;
  ncclComm_t comm_ = nullptr;
};

// For ranks of several machines. A send ends when its receive does.
class NcclLink final : public cuda::DeviceLink {
 public:
  // Goes once over the link, while both ends are here: that connects them, for which a first call makes the host wait.
  NcclLink(std::unique_ptr<NcclGroup> pair, bool sends, int64_t bytes) : pair_(std::move(pair)), bytes_(bytes) {
    cudaStream_t stream = nullptr;
    void* byte = nullptr;
    cuda::check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    cuda::check_cuda(cudaMallocAsync(&byte, 1, stream), "a link of two stages");
    sends ? pair_->send(byte, 1, stream) : pair_->receive(byte, 1, stream);
    cuda::check_cuda(cudaFreeAsync(byte, stream), "a link of two stages");
    cuda::check_cuda(cudaStreamSynchronize(stream), "connecting two stages");
    cudaStreamDestroy(stream);
  }
  void send(const void* x, Stream stream) override { pair_->send(x, bytes_, stream); }
  void receive(void* y, Stream stream) override { pair_->receive(y, bytes_, stream); }
  NcclGroup& pair() { return *pair_; }

 private:
  std::unique_ptr<NcclGroup> pair_;
  int64_t bytes_;
};

class NcclRanks final : public cuda::DeviceRanks {
 public:
  NcclRanks(Communicator& ranks, NcclOptions options)
      : DeviceRanks(ranks.mesh(), ranks.rank()),
        ranks_(ranks),
        options_(std::move(options)),
        device_(cuda::device_facts(options_.device).index) {
    nccl();  // missing: now
  }
  ~NcclRanks() override {
    const cuda::DeviceGuard guard(device_);
    // Destroying a communicator may wait for its other ranks: not where this one ends by an error, or one is lost.
    if (std::uncaught_exceptions() > exceptions_ || lost()) abort();
    groups_.clear();
    releasing_ = {};
  }

  cuda::RankGroup& group(const AxisList& over) override {
    for (const auto& [axes, group] : groups_)
      if (axes == over) return *group;
    octet::check(!aborted_, ErrorCode::kIo, "NCCL: rank {} was aborted", rank());
    const cuda::DeviceGuard guard(device_);
    const std::vector<int32_t> members = mesh().group(rank(), over);
    const int64_t own = std::find(members.begin(), members.end(), rank()) - members.begin();
    const int64_t before = free_bytes();
    auto made = std::make_unique<NcclGroup>(id_of_first(members, own), std::ssize(members), own,
                                            fmt::format("rank {} over {}", rank(), print(over)));
    nccl_groups_.push_back(made.get());
    std::unique_ptr<cuda::RankGroup> group = std::move(made);
    PeerMemory* memory = peers();
    if (memory != nullptr && members.size() > 1 && members.size() <= cuda::kMaxPeers && memory->reach(members)) {
      const bool alike = std::ranges::find(over, Axis::kPipeline) == over.end();
      group = std::make_unique<PeerGroup>(std::move(group), *memory, members, alike);
    }
    bytes_ += before - free_bytes();
    return *groups_.emplace_back(over, std::move(group)).second;
  }
  std::shared_ptr<std::byte> allocate(int64_t bytes, const std::string& purpose) override {
    PeerMemory* memory = peers();
    return memory != nullptr && memory->any() ? memory->share(bytes, purpose) : nullptr;
  }
  std::shared_ptr<cuda::DeviceLink> link(int32_t other, bool sends, int64_t bytes) override {
    octet::check(!aborted_, ErrorCode::kIo, "NCCL: rank {} was aborted", rank());
    const cuda::DeviceGuard guard(device_);
    const std::vector<int32_t> pair = {std::min(rank(), other), std::max(rank(), other)};
    std::shared_ptr<cuda::DeviceLink> link;
    if (PeerMemory* memory = peers(); memory != nullptr && memory->reach(pair)) {
      link = std::make_shared<PeerLink>(*memory, rank(), other, sends, bytes);
    } else {
      const int64_t own = rank() < other ? 0 : 1;
      auto group =
          std::make_unique<NcclGroup>(id_of_first(pair, own), 2, own, fmt::format("ranks {} and {}", pair[0], pair[1]));
      link = std::make_shared<NcclLink>(std::move(group), sends, bytes);
    }
    links_.push_back(link);
    return link;
  }
  void check() override {
    octet::check(!aborted_, ErrorCode::kIo, "NCCL: rank {} was aborted", rank());
    if (options_.check) options_.check();  // first: it knows which rank is lost
    for (const NcclGroup* group : nccl_groups_) group->check_async();
    for (const auto& weak : links_)
      if (const auto link = std::dynamic_pointer_cast<NcclLink>(weak.lock())) link->pair().check_async();
  }
  void abort() override {
    if (std::exchange(aborted_, true)) return;
    const cuda::DeviceGuard guard(device_);
    std::vector<std::shared_ptr<NcclLink>> of_nccl;
    std::vector<std::shared_ptr<PeerLink>> of_peers;
    for (const auto& weak : links_) {
      const auto link = weak.lock();
      if (auto nccl = std::dynamic_pointer_cast<NcclLink>(link)) of_nccl.push_back(std::move(nccl));
      if (auto peer = std::dynamic_pointer_cast<PeerLink>(link)) of_peers.push_back(std::move(peer));
    }
    // First what waits without NCCL, whose abort may wait for the device. Links again and again: what the other end had
    // under way may take back that they are released.
    if (peers_) peers_->abort();
    if (!of_peers.empty())
      releasing_ = std::jthread([links = std::move(of_peers), device = device_](const std::stop_token& stop) {
        const cuda::DeviceGuard there(device);
        do {
          for (const auto& link : links) link->abort();
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        } while (!stop.stop_requested());
      });
    std::vector<NcclGroup*> groups = nccl_groups_;
    for (const auto& link : of_nccl) groups.push_back(&link->pair());
    std::vector<std::jthread> aborting;  // at once: one may wait for the device, where kernels of the others wait
    for (NcclGroup* group : groups)
      aborting.emplace_back([group, device = device_] {
        const cuda::DeviceGuard there(device);
        group->abort();
      });
  }
  bool aborted() const override { return aborted_; }
  int64_t bytes() const override { return bytes_; }

 private:
  // Made by the first call, which all ranks make; null where settings want none.
  PeerMemory* peers() {
    if (!options_.peer_memory || mesh().ranks() == 1) return nullptr;
    if (!peers_) peers_.emplace(ranks_, device_);
    return &*peers_;
  }
  // The first member's, on all of them.
  ncclUniqueId id_of_first(const std::vector<int32_t>& members, int64_t own) {
    ncclUniqueId id = {};
    if (own == 0) nccl().check(nccl().get_unique_id(&id), "making an id");
    std::vector<ncclUniqueId> ids(members.size());
    std::vector<std::span<const std::byte>> send;
    std::vector<std::span<std::byte>> receive;
    for (ncclUniqueId& other : ids) {
      send.push_back(std::as_bytes(std::span(&id, 1)));
      receive.push_back(std::as_writable_bytes(std::span(&other, 1)));
    }
    ranks_.exchange(members, send, receive);
    return ids[0];
  }
  bool lost() const try {
    if (options_.check) options_.check();
    return false;
  } catch (const std::exception&) {
    return true;
  }
  static int64_t free_bytes() {
    size_t free = 0, total = 0;
    cuda::check_cuda(cudaMemGetInfo(&free, &total), "asking for free memory");
    return static_cast<int64_t>(free);
  }

  Communicator& ranks_;
  NcclOptions options_;
  int device_;
  int exceptions_ = std::uncaught_exceptions();
  std::optional<PeerMemory> peers_;
  std::vector<std::pair<AxisList, std::unique_ptr<cuda::RankGroup>>> groups_;  // in the order in which they were made
  std::vector<NcclGroup*> nccl_groups_;                                        // theirs
  std::vector<std::weak_ptr<cuda::DeviceLink>> links_;
  std::jthread releasing_;  // once aborted: what waits for stages goes on, until nothing is under way
  int64_t bytes_ = 0;
  bool aborted_ = false;
};

}  // namespace

std::unique_ptr<cuda::DeviceRanks> make_nccl_ranks(Communicator& ranks, NcclOptions options) {
  return std::make_unique<NcclRanks>(ranks, std::move(options));
}

std::string nccl_version(const std::vector<std::string>& paths) {
  return version_text(paths.empty() ? nccl().version : Nccl(paths).version);
}

}  // namespace octet

#else

namespace octet {
namespace {

[[noreturn]] void fail_without_nccl() {
  fail(ErrorCode::kUnsupported,
       "several GPUs need NCCL, whose header this program was built without: scripts/setup.sh cuda brings it, then "
       "build again with -DOCTET_CUDA=ON");
}

}  // namespace

// NOLINTNEXTLINE(performance-unnecessary-value-param): the signature is that of the build with NCCL
std::unique_ptr<cuda::DeviceRanks> make_nccl_ranks(Communicator&, NcclOptions) { fail_without_nccl(); }
std::string nccl_version(const std::vector<std::string>&) { fail_without_nccl(); }

}  // namespace octet
#endif
