// VerbsPath: one transport's lanes, and the ports that they go over. docs/decisions/0019-verbs.md.
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
  // `devices` and `ports`, in the same order, are what this rank has offered. Errors: kSystem, with the device;
  // kRefused (an offer that cannot be read); kConfig (settings.required, and a peer that has offered
  // something has no port that ours reach).
  static Result<std::unique_ptr<VerbsPath>> create(const DataPathHost& host, const DataPathOptions& options,
                                                   const std::vector<std::shared_ptr<VerbsDevice>>& devices,
                                                   const std::vector<VerbsPort>& ports, const VerbsSettings& settings);
  ~VerbsPath() override;

  std::string_view name() const override { return "verbs"; }
  bool reaches(std::uint32_t peer) const override { return !peers_[peer].empty(); }
  Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) override;
  Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) override;
  void pump() override;
  bool flush() override;  // true: the cards send by themselves
  std::string way(std::uint32_t peer) override;
  std::optional<std::string> broken(std::uint32_t peer) override;
  bool told_broken(std::uint32_t peer) override;
  void drain(std::int64_t patience_ns) override;
  MemoryForgetter memory_forgetter() override;
  std::uint64_t sends_told() const override;
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
  std::vector<std::shared_ptr<VerbsRail>> rails_;    // by our port; shared with nobody, watched by the doorbell
  std::vector<std::vector<VerbsLane::Rail>> peers_;  // by rank; empty: not reached
  std::map<Key, std::shared_ptr<VerbsLane>> lanes_;  // shared with their connections
  Key probed_{};                                     // the lane whose queue pairs were asked last
  std::int64_t probed_ns_ = 0;                       // when
};

}  // namespace tutti
