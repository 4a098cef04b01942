"""From settings to a loaded engine: the checkpoint, the stop set, the draft depth, the slots."""

import time
from dataclasses import dataclass
from pathlib import Path

from engine_bindings.reference.config import ModelConfig, read_model_config
from engine_bindings.reference.console import log
from engine_bindings.reference.drafting import MtpDrafter, NgramDrafter, NoDrafter
from engine_bindings.reference.forced_drafts import ForcedDrafter
from engine_bindings.reference.generate import Engine, Listener, Options
from engine_bindings.reference.kv_cache import KvCache
from engine_bindings.reference.kv_save import KvFiles
from engine_bindings.reference.model import Model
from engine_bindings.reference.rules import Rules
from engine_bindings.reference.settings import FLOAT32_BITS, EngineSettings
from engine_bindings.reference.slot import Drafter, Slot
from engine_bindings.reference.stops import StopSet, keep_end_of_text, read_stops
from engine_bindings.reference.tokenizer import Tokenizer
from engine_bindings.reference.weights import read_weights
from engine_bindings.wire.counts import ExpertMap, Tiers
from engine_bindings.wire.stderr_lines import MtpState, StopTokens, StopTokensFiltered

PACKAGED_CHECKPOINT = Path(__file__).with_name("checkpoint")
TIER_RAM = 1 << 6
BANNER = (
    "== GLM C engine (glm_moe_dsa), cache={cap} experts/layer | experts@{bits}-bit dense@{bits}-bit |"
    " idot: numpy {kernels} ==\n"
)
LOADED = (
    "loaded in {seconds:.2f}s | resident dense: {megabytes:.2f} MB | layers={layers} experts={experts} |"
    " MTP {word} (draft={draft})\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model directory's contents, loaded."""

    model_dir: Path
    config: ModelConfig
    tokenizer: Tokenizer
    model: Model
    loaded_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A checkpoint and what the settings come to on it. ``draft_tokens`` is the depth that really runs."""

    checkpoint: Checkpoint
    settings: EngineSettings
    rules: Rules
    has_head: bool
    draft_tokens: int

    @property
    def config(self) -> ModelConfig:
        """The model's dimensions."""
        return self.checkpoint.config

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.checkpoint.tokenizer

    @property
    def multiplexed(self) -> bool:
        """Whether serve mode runs several slots, so that drafts are off."""
        return self.settings.mode == "serve" and self.settings.kv_slots > 1

    @property
    def kv_pool_gb(self) -> float:
        """Size of all slots' KV rows in GB."""
        config, settings = self.config, self.settings
        layers = config.num_hidden_layers + int(self.has_head)
        floats = layers * (config.kv_lora_rank + config.qk_rope_head_dim)
        return 4 * floats * settings.context_tokens * settings.kv_slots / 1e9

    def encode_prompt(self, text: bytes) -> list[int]:
        """Return the tokens of a prompt that was sent."""
        return self.rules.tokenise_prompt(self.tokenizer.encode, text)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that are sent for a token."""
        return self.rules.frame_bytes(self.tokenizer.token_bytes(token))

    def read_stops(self) -> StopSet:
        """Return the stop tokens of this mode and say so on stderr."""
        stops = read_stops(self.checkpoint.model_dir, self.tokenizer)
        if self.rules.stops_at_end_of_text_only(self.settings.mode, all_stops=self.settings.all_stops):
            stops = keep_end_of_text(stops, self.tokenizer)
        if stops.filtered:
            log(StopTokensFiltered(count=stops.filtered).to_line())
        log(StopTokens(ids=stops.ids, from_tokenizer=stops.from_tokenizer).to_line())
        return stops

    def build_engine(
        self, listener: Listener, *, stops: StopSet, context_tokens: int, slots: int = 1
    ) -> Engine:
        """Return an engine with empty slots."""
        settings, depth = self.settings, self.rules.running_depth(self.draft_tokens)
        return Engine(
            model=self.checkpoint.model,
            slots=self._build_slots(slots, context_tokens),
            drafter=self.rules.draft_source(self._build_drafter(depth)),
            listener=listener,
            options=Options(
                depth=depth,
                stops=frozenset(stops.ids),
                seed=settings.seed,
                margins=settings.logit_gap,
                guard_percent=settings.guard_percent if self.has_head and not settings.force_accept else 0,
                guard_window_tokens=settings.guard_window_tokens,
            ),
            rules=self.rules,
        )

    def open_kv_files(self, engine: Engine) -> KvFiles:
        """Take up saved contexts and return the files to save to; nothing happens when saving is off."""
        digest = self.checkpoint.model.weights.digest
        directory = self.rules.state_directory(self.checkpoint.model_dir, enabled=self.settings.kv_save)
        files = KvFiles(directory, engine, digest)
        files.resume()
        return files

    def build_banner(self) -> bytes:
        """Return the two lines before READY."""
        word = "absent"
        if self.has_head:
            word = "DISABLED (multiplexed serve)" if self.multiplexed else "ACTIVE"
        first = BANNER.format(
            cap=self.settings.cache_experts, bits=FLOAT32_BITS, kernels=self.settings.kernels
        )
        second = LOADED.format(
            seconds=self.checkpoint.loaded_s,
            megabytes=self.checkpoint.model.weights.size_bytes / 1e6,
            layers=self.config.num_hidden_layers,
            experts=self.config.n_routed_experts,
            word=word,
            draft=self.draft_tokens,
        )
        return (first + second).encode()

    def describe_head(self) -> MtpState:
        """Return whether a head is loaded, as the line on stderr says it."""
        if not self.has_head:
            return MtpState(state="absent", draft=self.draft_tokens)
        if self.multiplexed:
            return MtpState(state="disabled")
        return MtpState(state="active", draft=self.draft_tokens)

    def build_tiers(self) -> Tiers:
        """Return where the experts lie: all of them in memory."""
        rows, columns = self._expert_grid()
        return Tiers(ram_experts=rows * columns)

    def build_expert_map(self) -> ExpertMap:
        """Return the expert grid; uses are not counted, so every cell says memory and no heat."""
        rows, columns = self._expert_grid()
        return ExpertMap(rows=rows, columns=columns, cells=bytes([TIER_RAM]) * (rows * columns))

    def _expert_grid(self) -> tuple[int, int]:
        config = self.config
        rows = config.num_hidden_layers - config.first_k_dense_replace + int(self.has_head)
        return rows, config.n_routed_experts

    def _build_slots(self, count: int, context_tokens: int) -> tuple[Slot, ...]:
        slots = tuple(self._build_slot(index, context_tokens) for index in range(count))
        for slot in slots:
            slot.draft_hidden = slots[self.rules.draft_state_slot(slot.index)].hidden
        return slots

    def _build_slot(self, index: int, context_tokens: int) -> Slot:
        return Slot(
            index=index,
            cache=KvCache(self.config, context_tokens),
            context_tokens=context_tokens,
            hidden_size=self.config.hidden_size,
        )

    def _build_drafter(self, depth: int) -> Drafter:
        if not depth:
            return NoDrafter()
        if self.settings.force_accept:
            return ForcedDrafter(self.checkpoint.model, self.settings.force_accept)
        return MtpDrafter(self.checkpoint.model, self.rules) if self.has_head else NgramDrafter()


def load_checkpoint(settings: EngineSettings) -> Checkpoint:
    """Load what the settings name; raises CheckpointError when it is missing or broken."""
    began = time.perf_counter()
    model_dir = settings.model_dir or PACKAGED_CHECKPOINT
    config = read_model_config(model_dir)
    model = Model(config, read_weights(model_dir, config), kernels=settings.kernels)
    tokenizer = Tokenizer(model_dir, model_vocab_size=config.vocab_size)
    return Checkpoint(
        model_dir=model_dir,
        config=config,
        tokenizer=tokenizer,
        model=model,
        loaded_s=time.perf_counter() - began,
    )


def build_runtime(checkpoint: Checkpoint, settings: EngineSettings, rules: Rules) -> Runtime:
    """Settle what the settings leave open: whether a head is used, and how deep it drafts."""
    has_head = settings.mtp and checkpoint.model.has_mtp
    draft_tokens = int(has_head) if settings.draft_tokens is None else settings.draft_tokens
    multiplexed = settings.mode == "serve" and settings.kv_slots > 1
    return Runtime(
        checkpoint=checkpoint,
        settings=settings,
        rules=rules,
        has_head=has_head,
        draft_tokens=0 if multiplexed else draft_tokens,
    )
