// shared_in_process<T>(key): the object of type T with this key that all ranks of the process share. Ranks may be made
// independently, each by a thread of its own, without any other object in common. The first caller makes the object, by
// its default constructor, and it ends with its last user. Any thread may call it.
#pragma once

#include <map>
#include <memory>
#include <mutex>

namespace tutti::detail {

template <class T, class Key>
std::shared_ptr<T> shared_in_process(const Key& key) {
  // never destroyed, because threads may still make and end ranks while the process exits
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::map<Key, std::weak_ptr<T>>;
  const std::scoped_lock lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<T>& found = all[key];
  std::shared_ptr<T> object = found.lock();
  if (object == nullptr) found = object = std::make_shared<T>();
  return object;
}

}  // namespace tutti::detail
