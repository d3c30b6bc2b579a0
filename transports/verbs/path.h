// VerbsPath: the DataPath over InfiniBand verbs. It owns the lanes of one transport and the ports that they use. The
// design is explained in docs/decisions/0019-verbs.md. Use it in the thread that drives progress.
#pragma once

#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transports/rdma/data_path.h"
#include "transports/verbs/lane.h"
#include "transports/verbs/rail.h"
#include "transports/verbs/verbs_maker.h"

namespace tutti {

class VerbsPath final : public DataPath {
 public:
  // `devices` and `ports`, which have the same order, are the ones that this rank has offered. Errors: kSystem, with
  // the name of the device; kRefused if an offer cannot be read; kConfig if settings.required is set and a peer that
  // has offered ports has none that a port of this rank can reach.
  static Result<std::unique_ptr<VerbsPath>> create(const DataPathHost& host, const DataPathOptions& options,
                                                   const std::vector<std::shared_ptr<VerbsDevice>>& devices,
                                                   const std::vector<VerbsPort>& ports, const VerbsSettings& settings);
  ~VerbsPath() override;

  std::string_view name() const override { return "verbs"; }
  bool reaches(std::uint32_t peer) const override { return !peers_[peer].empty(); }
  Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) override;
  Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) override;
  void pump() override;
  // Processes completions. Always returns true, because the NICs send without help from this process.
  bool flush() override;
  std::string describe_path(std::uint32_t peer) override;
  std::optional<std::string> broken(std::uint32_t peer) override;
  bool peer_reported_broken(std::uint32_t peer) override;
  void drain(std::int64_t timeout_ns) override;
  MemoryReleaseCallback memory_release_callback() override;
  std::uint64_t send_completions() const override;
  std::string troubles() override;

 private:
  using Key = std::pair<std::uint32_t, std::uint16_t>;  // peer, lane

  VerbsPath(const DataPathHost& host, DataPathOptions options, const VerbsSettings& settings)
      : host_(host), options_(std::move(options)), settings_(settings) {}
  Result<std::shared_ptr<VerbsLane>> lane(std::uint32_t peer, std::uint16_t number);
  void probe_next();

  const pid_t process_ = getpid();
  const DataPathHost host_;
  const DataPathOptions options_;
  const VerbsSettings settings_;
  // One rail for each port of this rank, null if it reaches no peer. They are shared pointers only so that the
  // doorbell can hold weak pointers to them.
  std::vector<std::shared_ptr<VerbsRail>> rails_;
  std::vector<std::vector<LaneRail>> peers_;         // the rails to each rank, indexed by rank; empty: not reached
  std::map<Key, std::shared_ptr<VerbsLane>> lanes_;  // shared with their connections
  Key probed_{};                                     // the lane whose queue pairs probe_next() has queried last
  std::int64_t probed_ns_ = 0;                       // time of that query
};

}  // namespace tutti
