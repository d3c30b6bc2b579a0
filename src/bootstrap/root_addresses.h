// RootAddresses: the numeric addresses of the host on which the rendezvous server listens.
//
// A name may become resolvable late, because container platforms publish the name of a container only when it runs.
// A name may also have several addresses of which only some work, or an old address at first. So the caller looks
// the name up again while the server does not answer. The system's resolver may wait for a name server for half a
// minute and cannot be interrupted. Therefore a separate thread looks the name up, and the thread is left running
// if the caller's time is over. Only one thread may use a RootAddresses object.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace tutti {

class RootAddresses {
 public:
  // `host` is a name or a numeric address.
  explicit RootAddresses(std::string host = {});

  // Looks the name up, at most every half second, and only once if it is a numeric address. Returns after `timeout`
  // even if there is no answer yet. A later call then takes the answer. If a look-up fails, the addresses of an
  // earlier look-up are kept.
  void look_up(std::chrono::milliseconds timeout);
  // Replaces the addresses. After that, look_up() has no effect.
  void fix(std::vector<std::string> addresses);

  // IPv4 addresses first, otherwise in the resolver's order, without duplicates. Empty until the name has been
  // resolved.
  const std::vector<std::string>& list() const { return list_; }
  // The reason why the last look-up failed, or empty if it succeeded.
  const std::string& trouble() const { return trouble_; }
  // True if the name resolves to loopback addresses only, as some distributions arrange with a line "127.0.1.1
  // NAME" in the hosts file. False for localhost and for a numeric loopback address.
  bool is_loopback_by_hosts_file() const;
  // For messages: the host, followed by its addresses if it is a name.
  std::string text() const;

 private:
  struct LookUp;
  void take(LookUp& answer);

  std::string host_;
  std::shared_ptr<LookUp> pending_;  // shared with the thread that looks the name up
  std::vector<std::string> list_;
  std::string trouble_;
  bool fixed_ = false;
  // The earliest time of the next look-up.
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace tutti
