// RootAddresses: the numeric addresses of the host on which the rendezvous server listens.
//
// A name may become resolvable late, because some container platforms publish the name of a container only when it
// runs. A name may also have several addresses of which only some work, or an old address at first. So the caller looks
// the name up again as long as the rendezvous server does not answer. The resolver of the system may wait for a
// name server for half a minute and cannot be interrupted. Therefore a separate thread runs the look-up. The thread
// is left running if the caller does not wait any longer. Only one thread at a time may use a RootAddresses object.
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

  // Looks the host up and updates list(). Does nothing for kLookUpPause (root_addresses.cc) after the answer of a
  // look-up was taken or its thread could not be started, after fix(), and if the host is a numeric address that is
  // already in the list. Returns after `timeout` even if there is no answer yet. In that case the look-up continues,
  // and a later call takes the answer. If a look-up fails, the addresses of an earlier look-up are kept.
  void look_up(std::chrono::milliseconds timeout);
  // Replaces the addresses of list(). After that, look_up() has no effect.
  void fix(std::vector<std::string> addresses);

  // The numeric addresses of the host: first IPv4, then IPv6, each in the order of the resolver, without
  // duplicates. After fix(): the addresses that were passed to it. Empty until a look-up has succeeded or fix() was
  // called.
  const std::vector<std::string>& list() const { return list_; }
  // The reason why there is no answer: the error of the last look-up, that it is still running, or that no thread could
  // be started for it. Empty if the last look-up succeeded, after fix(), and before the first look-up.
  const std::string& trouble() const { return trouble_; }
  // True if the name resolves to loopback addresses only, as some distributions arrange with a line "127.0.1.1
  // NAME" in the hosts file. False for localhost and for a numeric loopback address.
  bool is_loopback_by_hosts_file() const;
  // The host for messages, followed by list() in parentheses, unless list() is empty or contains only the same text.
  // If the host is empty: only list().
  std::string text() const;

 private:
  struct LookUp;
  void take(LookUp& answer);

  std::string host_;
  // The look-up that is in progress, or whose answer was not taken yet. Shared with the thread that runs it. Null if
  // there is none.
  std::shared_ptr<LookUp> pending_;
  std::vector<std::string> list_;
  std::string trouble_;
  // fix() was called: by the owner, or by look_up() because the host is a numeric address.
  bool fixed_ = false;
  // The next look-up may not start before this time.
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace tutti
