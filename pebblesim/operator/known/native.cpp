// Passes that are made again, and a function of autograd for both passes, without Python: what `native` compiles.
//
// A pass is a list of commands for the driver over one block of words (`direct`), memory that it makes, and views that
// it returns (`lengths`). A backward pass that is not prepared, or whose tensors are others than were prepared for, is
// made by Python, which is right for all of them.

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <atomic>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Numbers = std::vector<int64_t>;

static constexpr int64_t map_bytes = 128, aligned = 16, without_context = 201;
static std::atomic<bool> on{true};

struct Command {  // a launch has a function, and a fill none; begin: of a configuration, of a slot, or of a copy
  std::string what;
  int64_t begin, function;
  Numbers parameters;
};

struct Driver {
  int (*launch)(const void*, int64_t, void**, void**);
  int (*fill)(uint64_t, unsigned, size_t, int64_t);
  int (*copy)(const void*, int64_t);
  int (*context)(void**, int);
  int (*enter)(void*);
};

struct Kind {  // what is alike for all lengths
  Driver by;
  std::vector<Command> commands;
  Numbers streams, inputs, types;
  std::vector<Numbers> alike;
  int64_t slots;
  at::Device device{at::kCPU};
  PyObject* kept;  // kernels, which Triton unloads when nothing holds them
};

struct Memory {
  int64_t slot;
  Numbers sizes, strides;
};

struct View {
  int64_t slot, offset;
  bool whole;
  Numbers sizes, strides;
};

struct Pass {
  std::shared_ptr<Kind> kind;
  std::string words;
  std::vector<Numbers> places, fills, begins;
  std::vector<Memory> memory;
  Numbers rooms;
  std::vector<View> views;
};

struct Lying {  // how a tensor lies in memory
  Numbers strides;
  at::ScalarType type;

  static Lying of(const Tensor& x) { return x.defined() ? Lying{x.strides().vec(), x.scalar_type()} : Lying{}; }
  bool still(const Tensor& x, const at::Device& device) const {
    return !x.defined() || (x.scalar_type() == type && x.device() == device && x.strides() == at::IntArrayRef(strides));
  }
};

struct Prepared {  // a backward pass that follows a forward pass
  int64_t self;
  std::shared_ptr<Pass> pass;
  Numbers strides;  // of the gradient of O
  std::vector<Lying> saved;  // hooks may bring it back in another way
  bool fourth, taught;  // whether there is a fourth input, and whether the pass gives its gradient
  PyObject* otherwise;
};

// ---- a pass

static int again(const Driver& by, int refused, const std::function<int()>& command, const at::Device& device) {
  void* context = nullptr;
  if (refused == without_context && !by.context(&context, device.index()) && !by.enter(context)) refused = command();
  TORCH_CHECK(!refused, "the driver of the card refuses a launch, with its error ", refused, ".");
  return refused;
}

static void give(const Pass& pass, const Numbers& places, int64_t stream) {
  const Kind& kind = *pass.kind;
  std::vector<char> room(pass.words.size() + map_bytes);
  char* begin = room.data() + (-reinterpret_cast<uintptr_t>(room.data())) % map_bytes;
  std::memcpy(begin, pass.words.data(), pass.words.size());
  auto* numbers = reinterpret_cast<int64_t*>(begin);
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
static bool make(const Pass& pass, variable_list tensors, int64_t stream, variable_list& results) {
  const Kind& kind = *pass.kind;
  Numbers places(kind.slots);
  int64_t together = 0;
  for (auto slot : kind.inputs) together |= places[slot] = reinterpret_cast<int64_t>(tensors[slot].data_ptr());
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
    places[each.slot] = reinterpret_cast<int64_t>(tensors[each.slot].data_ptr());
  }
  variable_list rooms;
  for (auto words : pass.rooms) rooms.push_back(at::empty_strided({words}, {1}, options.dtype(at::kFloat)));
  for (auto& each : pass.begins) places[each[0]] = reinterpret_cast<int64_t>(rooms[each[1]].data_ptr()) + each[2];
  give(pass, places, stream);
  for (auto& each : pass.views) {
    if (each.slot < 0) { results.emplace_back(); continue; }
    auto& one = tensors[each.slot];
    results.push_back(each.whole ? one : one.as_strided(each.sizes, each.strides, one.storage_offset() + each.offset));
  }
  return true;
}

// ---- the function of autograd

static at::Stream stream_of(const Tensor& x) { return c10::impl::VirtualGuardImpl(x.device().type()).getStream(x.device()); }

struct Attention : torch::autograd::Function<Attention> {
  struct Given {
    Tensor prepared;
    variable_list outputs, saved;
    int64_t stream;
  };

  static variable_list forward(
      AutogradContext* ctx, Tensor query, Tensor key, Tensor value, std::optional<Tensor> fourth, Given* given) {
    ctx->save_for_backward(given->saved);
    ctx->saved_data["prepared"] = given->prepared;
    ctx->saved_data["stream"] = given->stream;
    ctx->saved_data["number of the stream"] = static_cast<int64_t>(stream_of(query).id());
    ctx->set_materialize_grads(false);
    return given->outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& prepared = **reinterpret_cast<Prepared**>(ctx->saved_data["prepared"].toTensor().data_ptr());
    std::vector<bool> needed;
    for (int at = 0; at < 4; ++at) needed.push_back((at < 3 || prepared.fourth) && ctx->needs_input_grad(at));
    variable_list made, saved = ctx->get_saved_variables();
    bool any = grads[0].defined() || (grads.size() > 1 && grads[1].defined());
    if (any && !(ready(ctx, prepared, grads, saved, needed) && alone(ctx, prepared, grads[0], saved, made)))
      made = by_python(prepared, grads, saved, needed);
    made.resize(5);
    for (int at = 0; at < 4; ++at)
      if (!needed[at]) made[at] = Tensor();
    return made;
  }

  // Whether these are the tensors that a pass was prepared for, and nothing traces or transforms what is done with them.
  static bool ready(AutogradContext* ctx, const Prepared& prepared, const variable_list& grads, const variable_list& saved, const std::vector<bool>& needed) {
    auto usual = c10::default_included_set | c10::autocast_dispatch_keyset;
    if (!on || at::GradMode::is_enabled() || !(c10::impl::tls_local_dispatch_key_set().included_ - usual).empty()) return false;
    auto& grad = grads[0];
    if (!grad.defined() || (grads.size() > 1 && grads[1].defined()) || (needed[3] && !prepared.taught)) return false;
    if (!(needed[0] || needed[1] || needed[2])) return false;
    auto& like = saved[0];
    if (grad.key_set() != like.key_set() || grad.dtype() != like.dtype() || grad.device() != like.device()) return false;
    for (size_t at = 0; at < saved.size(); ++at)
      if (!prepared.saved[at].still(saved[at], grad.device())) return false;
    if (grad.strides() != at::IntArrayRef(prepared.strides) || grad._fw_grad(0).defined()) return false;
    c10::impl::VirtualGuardImpl guard(grad.device().type());
    return guard.getDevice() == grad.device() && stream_of(grad).id() == ctx->saved_data["number of the stream"].toInt();
  }

  static bool alone(AutogradContext* ctx, const Prepared& prepared, const Tensor& grad, const variable_list& saved, variable_list& made) {
    variable_list inputs{grad, Tensor()};
    inputs.insert(inputs.end(), saved.begin(), saved.end());
    try {
      return make(*prepared.pass, std::move(inputs), ctx->saved_data["stream"].toInt(), made);
    } catch (const c10::OutOfMemoryError&) {  // other kernels may need less
      return false;
    }
  }

  static variable_list by_python(const Prepared& prepared, const variable_list& grads, const variable_list& saved, const std::vector<bool>& needed);
};

// ---- Python

struct Object {  // a reference that is given back
  PyObject* is;
  explicit Object(PyObject* is) : is(is) { if (!is) throw python_error(); }
  Object(const Object&) = delete;
  ~Object() { Py_DECREF(is); }
};

static PyObject* tuple_of(const variable_list& tensors) {
  PyObject* made = PyTuple_New(tensors.size());
  for (size_t at = 0; at < tensors.size(); ++at) PyTuple_SET_ITEM(made, at, THPVariable_Wrap(tensors[at]));
  return made;
}

static variable_list tensors_of(PyObject* several) {
  variable_list found;
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(several); ++at) {
    PyObject* each = PyTuple_GET_ITEM(several, at);
    found.push_back(each == Py_None ? Tensor() : THPVariable_Unpack(each));
  }
  return found;
}

variable_list Attention::by_python(const Prepared& prepared, const variable_list& grads, const variable_list& saved, const std::vector<bool>& needed) {
  pybind11::gil_scoped_acquire acquired;
  try {
    Object one(tuple_of(grads)), two(tuple_of(saved)), three(PyTuple_New(4));
    for (int at = 0; at < 4; ++at) PyTuple_SET_ITEM(three.is, at, PyBool_FromLong(needed[at]));
    Object made(PyObject_CallFunctionObjArgs(prepared.otherwise, one.is, two.is, three.is, nullptr));
    return tensors_of(made.is);
  } catch (python_error& error) {
    error.persist();
    throw;
  }
}

static int64_t number(PyObject* x) {
  int64_t found = PyLong_AsLongLong(x);
  if (found == -1 && PyErr_Occurred()) throw python_error();
  return found;
}

static PyObject* item(PyObject* several, Py_ssize_t at) {
  TORCH_CHECK(PyTuple_Check(several) && at < PyTuple_GET_SIZE(several), "a tuple is not as it should be");
  return PyTuple_GET_ITEM(several, at);
}

template <class F>
static auto each_of(PyObject* several, F f) {
  std::vector<decltype(f(several))> found;
  TORCH_CHECK(PyTuple_Check(several), "a tuple is expected");
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(several); ++at) found.push_back(f(PyTuple_GET_ITEM(several, at)));
  return found;
}

static Numbers numbers(PyObject* x) { return each_of(x, number); }

template <class T>
static PyObject* held(std::shared_ptr<T> x) {
  return PyCapsule_New(new std::shared_ptr<T>(std::move(x)), nullptr, [](PyObject* capsule) {
    delete static_cast<std::shared_ptr<T>*>(PyCapsule_GetPointer(capsule, nullptr));
  });
}

template <class T>
static std::shared_ptr<T> in(PyObject* capsule) {
  return *static_cast<std::shared_ptr<T>*>(PyCapsule_GetPointer(capsule, nullptr));
}

static void let_go(PyObject* x) {
  if (!Py_IsInitialized()) return;
  pybind11::gil_scoped_acquire acquired;
  Py_DECREF(x);
}

// kind(driver, commands, streams, inputs, types, alike, slots, like, kept)
static PyObject* kind(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  std::shared_ptr<Kind> made(new Kind, [](Kind* x) { let_go(x->kept); delete x; });
  Py_INCREF(made->kept = given[8]);
  auto by = numbers(given[0]);
  std::memcpy(&made->by, by.data(), sizeof(Driver));
  made->commands = each_of(given[1], [](PyObject* x) {
    return Command{PyUnicode_AsUTF8(item(x, 0)), number(item(x, 1)), number(item(x, 2)), numbers(item(x, 3))};
  });
  made->streams = numbers(given[2]);
  made->inputs = numbers(given[3]);
  for (auto& each : tensors_of(given[4])) made->types.push_back(static_cast<int64_t>(each.scalar_type()));
  made->alike = each_of(given[5], numbers);
  made->slots = number(given[6]);
  made->device = THPVariable_Unpack(given[7]).device();
  return held(made);
  END_HANDLE_TH_ERRORS
}

// made(kind, words, places, fills, memory, rooms, begins, views)
static PyObject* made(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  auto made = std::make_shared<Pass>();
  made->kind = in<Kind>(given[0]);
  made->words.assign(PyBytes_AS_STRING(given[1]), PyBytes_GET_SIZE(given[1]));
  made->places = each_of(given[2], numbers);
  made->fills = each_of(given[3], numbers);
  made->memory = each_of(given[4], [](PyObject* x) {
    return Memory{number(item(x, 0)), numbers(item(x, 1)), numbers(item(x, 2))};
  });
  made->rooms = numbers(given[5]);
  made->begins = each_of(given[6], numbers);
  made->views = each_of(given[7], [](PyObject* x) {
    if (x == Py_None) return View{-1, 0, true, {}, {}};
    bool whole = item(x, 2) == Py_None;
    return View{number(item(x, 0)), number(item(x, 1)), whole, whole ? Numbers() : numbers(item(x, 2)), numbers(item(x, 3))};
  });
  return held(made);
  END_HANDLE_TH_ERRORS
}

// run(pass, inputs, stream): results, or None where another way is to be taken
static PyObject* run(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  auto pass = in<Pass>(given[0]);
  auto inputs = tensors_of(given[1]);
  auto stream = number(given[2]);
  variable_list results;
  bool right = false;
  {
    pybind11::gil_scoped_release released;
    try {
      right = make(*pass, std::move(inputs), stream, results);
    } catch (const c10::OutOfMemoryError&) {
    }
  }
  if (right) return tuple_of(results);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// prepared(pass, strides, saved, fourth, taught, otherwise): a tensor that holds this
static PyObject* prepared(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  auto* made = new Prepared{0, in<Pass>(given[0]), numbers(given[1]), {}, given[3] == Py_True, given[4] == Py_True, given[5]};
  for (auto& each : tensors_of(given[2])) made->saved.push_back(Lying::of(each));
  Py_INCREF(made->otherwise);
  made->self = reinterpret_cast<int64_t>(made);
  auto gone = [](void* x) {
    auto* made = reinterpret_cast<Prepared*>(*static_cast<int64_t*>(x));
    let_go(made->otherwise);
    delete made;
  };
  return THPVariable_Wrap(at::from_blob(&made->self, {1}, gone, at::TensorOptions().dtype(at::kLong)));
  END_HANDLE_TH_ERRORS
}

// attached(prepared, inputs, outputs, saved, stream): the outputs, with gradients
static PyObject* attached(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  auto inputs = tensors_of(given[1]);
  Attention::Given rest{THPVariable_Unpack(given[0]), tensors_of(given[2]), tensors_of(given[3]), number(given[4])};
  auto fourth = inputs[3].defined() ? std::optional<Tensor>(inputs[3]) : std::nullopt;
  return tuple_of(Attention::apply(inputs[0], inputs[1], inputs[2], fourth, &rest));
  END_HANDLE_TH_ERRORS
}

// symbols(inputs, axes of lengths by the number of axes): as `lengths.symbols_of`
static PyObject* symbols(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  Numbers found;
  auto long_ones = each_of(given[1], numbers);
  for (auto& each : tensors_of(given[0])) {
    if (!each.defined()) continue;
    if (each.dim() < static_cast<int64_t>(long_ones.size()))
      for (auto at : long_ones[each.dim()]) found.push_back(each.size(at));
    auto strides = each.strides();
    found.insert(found.end(), strides.begin(), strides.end() - (each.dim() > 0));
  }
  Object made(PyList_New(found.size()));
  for (size_t at = 0; at < found.size(); ++at) PyList_SET_ITEM(made.is, at, PyLong_FromLongLong(found[at]));
  return Py_NewRef(made.is);
  END_HANDLE_TH_ERRORS
}

static PyObject* turn(PyObject*, PyObject* x) {
  on = x == Py_True;
  Py_RETURN_NONE;
}

#define METHOD(name) {#name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(name)), METH_FASTCALL, nullptr}
static PyMethodDef methods[] = {
    METHOD(kind), METHOD(made), METHOD(run), METHOD(prepared), METHOD(attached), METHOD(symbols), {"turn", turn, METH_O, nullptr}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "pebblesim_native", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_pebblesim_native() { return PyModule_Create(&module); }
