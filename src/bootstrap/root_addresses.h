// RootAddresses: the numeric addresses of the host where rank 0 is met.
//
// A name may resolve late: container platforms publish the name of a container once it runs. A name may also have
// several addresses of which only some work, or an old one at first. So the caller looks the name up again while nobody
// answers. The system's resolver may wait for a name server for half a minute and cannot be interrupted, so names are
// looked up by a thread of its own, which is left alone if the caller's time is over. One thread may use an object.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace tutti {

class RootAddresses {
 public:
  // `host`: a name, or a numeric address.
  explicit RootAddresses(std::string host = {});

  // Looks the name up, at most every half second and never again if it is a numeric address. Returns after `patience`
  // even if there is no answer yet: a later call takes it. A look-up that fails leaves the addresses of an earlier one.
  void look_up(std::chrono::milliseconds patience);
  // Replaces the addresses; look_up() has no effect from then on.
  void fix(std::vector<std::string> addresses);

  // IPv4 first, otherwise in the resolver's order; each address once. Empty: the name has not been resolved yet.
  const std::vector<std::string>& list() const { return list_; }
  // Why the last look-up failed, in words; empty if it did not.
  const std::string& trouble() const { return trouble_; }
  // Whether the name is turned into loopback addresses only, as by the line "127.0.1.1 NAME" that some distributions
  // write into the hosts file. False for localhost and for a loopback address itself.
  bool is_loopback_by_hosts_file() const;
  // For messages: the host, followed by its addresses if it is a name.
  std::string text() const;

 private:
  struct LookUp;
  void take(LookUp& answer);

  std::string host_;
  std::shared_ptr<LookUp> pending_;  // shared with its thread
  std::vector<std::string> list_;
  std::string trouble_;
  bool fixed_ = false;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace tutti
