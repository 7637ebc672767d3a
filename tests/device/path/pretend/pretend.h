// A pretend accelerator: its memory is the host's at an address that the host cannot follow, its
// kernels are the CPU's, and it keeps what it is asked to do later until somebody waits for it.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <string>

namespace pretend {
using at::Tensor;
using c10::DataPtr, c10::Device, c10::DeviceIndex, c10::DispatchKey, c10::DispatchKeySet;
using c10::Storage;

constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr uintptr_t TAG = uintptr_t(1) << 55;  // in no address of a user, on x86-64 or aarch64
constexpr int UNWRITTEN = 0xff;  // bytes of memory that nobody wrote yet: not a number

inline void* tagged(void* p) { return p ? (void*)((uintptr_t)p | TAG) : nullptr; }
inline void* untagged(const void* p) { return (void*)((uintptr_t)p & ~TAG); }
inline bool on_device(const Tensor& t) { return t.defined() && t.device().type() == KIND; }

// memory ------------------------------------------------------------------------------------------

// The block at `p` as memory of a device. `host`, where it is given, owns it; else it is freed.
DataPtr device_memory(void* p, size_t bytes, DeviceIndex device, Storage host = {});
c10::Allocator* device_allocator();
void resize_bytes(c10::StorageImpl* storage, size_t bytes);
bool is_pinned(const void* p);

// devices -----------------------------------------------------------------------------------------

extern thread_local DeviceIndex current;

// Random numbers of a device come from a CPU generator, so that they are the CPU's.
struct Generator final : c10::GeneratorImpl {
  at::Generator cpu;
  Generator(DeviceIndex index, at::Generator made)
      : GeneratorImpl(Device(KIND, index), DispatchKeySet(DispatchKey::PrivateUse1)),
        cpu(std::move(made)) {}
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { cpu.set_offset(offset); }
  uint64_t get_offset() const override { return cpu.get_offset(); }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    cpu.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return cpu.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override { return new Generator(device_.index(), cpu.clone()); }
};
const at::Generator& default_generator(DeviceIndex index);

// what is seen, and what is done late -------------------------------------------------------------

// Tell Python's hook, if there is one, that the host waits: "copy" to the device, "read" of what is
// there, or "synchronize".
void waits(const char* kind, const std::string& operation, int64_t bytes);

// Copy between the host and a device as a stream would: `to` and `from` lie on the host's side of
// memory. To the device: `from` is read when `device_storage` is used first, or somebody waits. To
// the host: `to` holds nothing until somebody waits.
void copy_to_device_later(const Tensor& from, const Tensor& to, const Storage& device_storage);
void copy_to_host_later(const Tensor& from, const Tensor& to);

// Do the late copies into a storage that is about to be used.
void arrive(const c10::StorageImpl* storage);

// Do all that is late. Raises where host memory was written while a copy from it was under way.
void finish();

// A device tensor as one of the host's on the same memory; it lives as long as that.
Tensor on_host(const Tensor& t);
}  // namespace pretend
