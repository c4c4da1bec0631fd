// Passes as the driver makes them: commands over one block of words, and what follows from sizes in them.
//
// A family is what all passes of a kind have in common that decide alike: a script of expressions of lengths and
// strides, and a form, which is a pass whose numbers are registers of the script. The script of one family serves all
// lengths; it is what `symbols` has as a function of Python, in 64 bits.

#pragma once

#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <bit>
#include <map>

using at::Tensor;
using torch::autograd::variable_list;
using Number = int64_t;
using Numbers = std::vector<Number>;
using Three = std::array<Number, 3>;

static constexpr Number word_bytes = 8, map_bytes = 128, aligned = 16, without_context = 201;

struct Command {  // a launch has a function, and a fill none; begin: of a configuration, of a slot, or of a copy
  std::string what;
  Number begin, function;
  Numbers parameters;
};

struct Driver {
  int (*launch)(const void*, Number, void**, void**);
  int (*fill)(uint64_t, unsigned, size_t, Number);
  int (*copy)(const void*, Number);
  int (*context)(void**, int);
  int (*enter)(void*);
  int (*describe)(
      void*, unsigned, unsigned, uint64_t, const uint64_t*, const uint64_t*, const unsigned*, const unsigned*, unsigned,
      unsigned, unsigned, unsigned);
};

struct Kind {  // what is alike for all lengths
  Driver by;
  std::vector<Command> commands;
  Numbers streams, inputs, types;
  std::vector<Three> alike;
  Number slots;
  at::Device device{at::kCPU};
  PyObject* kept;  // kernels, which Triton unloads when nothing holds them
};

struct Memory {
  Number slot;
  Numbers sizes, strides;
};

struct View {
  Number slot, offset;
  bool there, whole;
  Numbers sizes, strides;
};

struct Pass {
  std::shared_ptr<Kind> kind;
  std::string words;  // descriptors, and behind them all else that the driver reads
  std::vector<Three> places, fills, begins;
  std::vector<Memory> memory;
  Numbers rooms;
  std::vector<View> views;
};

// ---- expressions of sizes

struct Line {  // an operation on two registers, or a comparison, and whether it holds
  char what;
  size_t one, two;
  bool holds;
};

enum class Outcome { found, other, beyond };  // beyond: Python is to say, whose integers have no end

struct Script {  // registers are sizes, then what lines give, then constants
  size_t sizes;
  std::vector<Line> lines;
  Numbers constants;

  Outcome of(const Numbers& symbols, Numbers& registers) const {
    registers = symbols;
    registers.resize(sizes + lines.size());
    registers.insert(registers.end(), constants.begin(), constants.end());
    for (size_t at = 0; at < lines.size(); ++at) {
      auto& line = lines[at];
      Number a = registers[line.one], b = registers[line.two], &to = registers[sizes + at];
      bool holds = line.holds;
      switch (line.what) {
        case '+': if (__builtin_add_overflow(a, b, &to)) return Outcome::beyond; break;
        case '-': if (__builtin_sub_overflow(a, b, &to)) return Outcome::beyond; break;
        case '*': if (__builtin_mul_overflow(a, b, &to)) return Outcome::beyond; break;
        case '/':
        case '%': {  // rounded down, as in Python
          if (!b || (b == -1 && a == INT64_MIN)) return Outcome::beyond;
          bool below = a % b && (a < 0) != (b < 0);
          to = line.what == '/' ? a / b - below : a % b + (below ? b : 0);
          break;
        }
        case 'b': to = std::bit_width(a < 0 ? -static_cast<uint64_t>(a) : static_cast<uint64_t>(a)); break;
        case '=': holds = a == b; break;
        case '!': holds = a != b; break;
        case '<': holds = a < b; break;
        case 'l': holds = a <= b; break;
        case '>': holds = a > b; break;
        case 'g': holds = a >= b; break;
      }
      if (holds != line.holds) return Outcome::other;
    }
    return Outcome::found;
  }
};

// ---- descriptors of the copy engine

struct Boxes {  // descriptors of a kind, which differ in lengths and strides; for the address 0
  Driver by;
  Number type, swizzle, nan;
  std::vector<unsigned> sides;
  std::map<Numbers, std::array<char, map_bytes>> known;

  // The descriptor of some lengths, and strides in bytes behind them; null where the driver refuses it.
  const char* of(const Numbers& lengths) {
    if (auto found = known.find(lengths); found != known.end()) return found->second.data();
    alignas(map_bytes) char made[map_bytes];
    unsigned rank = sides.size();
    std::vector<unsigned> ones(rank, 1);
    auto* sizes = reinterpret_cast<const uint64_t*>(lengths.data());
    if (by.describe(made, type, rank, anywhere, sizes, sizes + rank, sides.data(), ones.data(), 0, swizzle, l2_128b, nan))
      return nullptr;
    if (known.size() >= most) known.clear();
    auto& kept = known[lengths];
    std::memcpy(kept.data(), made, map_bytes);
    return kept.data();
  }

  static constexpr uint64_t anywhere = 1ull << 32;
  static constexpr unsigned l2_128b = 2;
  static constexpr size_t most = 2048;
};

// ---- families

struct Family {
  std::vector<Numbers> axes;  // whose lengths are symbols, by the number of axes
  Script script;
  Pass form;  // of registers
  std::vector<Numbers> lengths;  // of descriptors: registers of their lengths, and of strides in bytes
  std::vector<std::shared_ptr<Boxes>> boxes;
  Numbers words;

  // The symbols of a pass, in the order of `Shadow.of`.
  Numbers symbols(const variable_list& inputs) const {
    Numbers found;
    for (auto& each : inputs) {
      if (!each.defined()) continue;
      auto sizes = each.sizes(), strides = each.strides();
      if (sizes.size() < axes.size())
        for (auto at : axes[sizes.size()]) found.push_back(sizes[at]);
      found.insert(found.end(), strides.begin(), strides.end() - !strides.empty());
    }
    return found;
  }

  // The pass for values of the symbols; nothing where a decision is another one.
  Outcome of(const Numbers& symbols, std::shared_ptr<Pass>& made) const {
    if (script.sizes && script.sizes != symbols.size()) return Outcome::beyond;
    Numbers registers;
    if (auto found = script.of(script.sizes ? symbols : Numbers(), registers); found != Outcome::found) return found;
    auto each = [&](Number& at) { at = registers[at]; };
    auto all = [&](auto& several) { for (auto& at : several) each(at); };
    made = std::make_shared<Pass>(form);
    made->words.resize(boxes.size() * map_bytes + words.size() * word_bytes);
    char* to = made->words.data();
    for (size_t at = 0; at < boxes.size(); ++at, to += map_bytes) {
      Numbers of = lengths[at];
      all(of);
      const char* found = boxes[at]->of(of);
      if (!found) return Outcome::beyond;
      std::memcpy(to, found, map_bytes);
    }
    for (auto at : words) {
      std::memcpy(to, &registers[at], word_bytes);
      to += word_bytes;
    }
    for (auto* several : {&made->places, &made->fills, &made->begins}) for (auto& three : *several) all(three);
    for (auto& one : made->memory) each(one.slot), all(one.sizes), all(one.strides);
    all(made->rooms);
    for (auto& one : made->views) if (one.there) each(one.slot), each(one.offset), all(one.sizes), all(one.strides);
    return Outcome::found;
  }
};

// ---- a pass

inline int again(const Driver& by, int refused, const std::function<int()>& command, const at::Device& device) {
  void* context = nullptr;
  if (refused == without_context && !by.context(&context, device.index()) && !by.enter(context)) refused = command();
  TORCH_CHECK(!refused, "the driver of the card refuses a launch, with its error ", refused, ".");
  return refused;
}

inline void give(const Pass& pass, const Numbers& places, Number stream) {
  const Kind& kind = *pass.kind;
  std::vector<char> room(pass.words.size() + map_bytes);
  char* begin = room.data() + (-reinterpret_cast<uintptr_t>(room.data())) % map_bytes;
  std::memcpy(begin, pass.words.data(), pass.words.size());
  auto* numbers = reinterpret_cast<Number*>(begin);
  for (auto& each : pass.places) numbers[each[0]] = places[each[1]] + each[2];
  for (auto at : kind.streams) numbers[at] = stream;
  std::vector<void*> parameters;
  auto fill = pass.fills.begin();
  for (auto& each : kind.commands) {
    parameters.clear();
    for (auto at : each.parameters) parameters.push_back(begin + at);
    auto command = [&]() {
      if (each.what == "launch") return kind.by.launch(begin + each.begin, each.function, parameters.data(), nullptr);
      if (each.what == "copy") return kind.by.copy(begin + each.begin, stream);
      return kind.by.fill(places[(*fill)[0]] + (*fill)[1], 0, (*fill)[2], stream);
    };
    if (int refused = command()) again(kind.by, refused, command, kind.device);
    if (each.what == "fill") ++fill;
  }
}

// Make a pass; false if inputs are at other multiples of bytes, or other ones begin at one address.
inline bool make(const Pass& pass, variable_list tensors, Number stream, variable_list& results) {
  const Kind& kind = *pass.kind;
  Numbers places(kind.slots);
  Number together = 0;
  for (auto slot : kind.inputs) together |= places[slot] = reinterpret_cast<Number>(tensors[slot].data_ptr());
  if (together % aligned) return false;
  for (auto& each : kind.alike)
    if ((places[each[0]] == places[each[1]]) != each[2]) return false;
  at::AutoDispatchBelowADInplaceOrView below;
  auto options = at::TensorOptions().device(kind.device);
  tensors.resize(kind.slots);
  size_t number = 0;
  for (auto& each : pass.memory) {
    auto type = static_cast<at::ScalarType>(kind.types[number++]);
    tensors[each.slot] = at::empty_strided(each.sizes, each.strides, options.dtype(type));
    places[each.slot] = reinterpret_cast<Number>(tensors[each.slot].data_ptr());
  }
  variable_list rooms;
  for (auto words : pass.rooms) rooms.push_back(at::empty_strided({words}, {1}, options.dtype(at::kFloat)));
  for (auto& each : pass.begins) places[each[0]] = reinterpret_cast<Number>(rooms[each[1]].data_ptr()) + each[2];
  give(pass, places, stream);
  for (auto& each : pass.views) {
    if (!each.there) { results.emplace_back(); continue; }
    auto& one = tensors[each.slot];
    results.push_back(each.whole ? one : one.as_strided(each.sizes, each.strides, one.storage_offset() + each.offset));
  }
  return true;
}
