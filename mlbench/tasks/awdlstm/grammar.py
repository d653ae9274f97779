"""A small language whose best possible perplexity is known exactly.

Sentences like "nouns3.1 adverb0 adverb7 verb3.0 object3.2" have a topic, which tends to stay from sentence to
sentence, and a number; subject, verb and objects have the topic, and the verb agrees with the subject
in number, over any count of adverbs between them that tell nothing. So a model must remember what no
neighbouring word shows.

Words move a chain from state to state: in a state, each word has a probability, and the state after a word
is fixed. As the words tell the state, the entropy of the next word given the whole past is that of the
state's words, and the entropy rate is its mean under the chain's stationary distribution
(Shannon 1948, section 7).
"""

from bisect import bisect_right
from typing import NamedTuple

import numpy as np


class Source(NamedTuple):
    """A chain: chances [states, words] of the next word, next states [states, words], and the words.

    A text begins in state 0.
    """

    chance: np.ndarray
    follow: np.ndarray
    words: list[str]


class Perplexities(NamedTuple):
    """The perplexity of the best model that sees the whole past, two, one or no words of it."""

    optimum: float
    trigram: float
    bigram: float
    unigram: float


def agreement(
    *,
    topics: int,
    nouns: int,
    verbs: int,
    objects: int,
    adverbs: int,
    same_topic: float,
    before_verb: float,
    before_object: float,
    more_objects: float,
) -> Source:
    """Return the language with `nouns`, `verbs`, `objects` a topic and `adverbs` common to all topics.

    - same_topic: probability that a sentence keeps the topic; else it is any other one, all alike.
    - before_verb, before_object: probability of an adverb, and after it of another one.
    - more_objects: probability of another object after an object.

    Within a class of words the i-th has a probability proportional to 1/i (Zipf); singular and plural are
    equally likely.
    """
    words = ["<eos>", *(f"adverb{i}" for i in range(adverbs))]

    def new(kind: str, count: int) -> np.ndarray:
        start = len(words)
        words.extend(f"{kind}{i}" for i in range(count))
        return np.arange(start, len(words))

    adverb = np.arange(1, len(words))
    noun = [[new(f"{form}{t}.", nouns) for form in ("noun", "nouns")] for t in range(topics)]
    verb = [[new(f"{form}{t}.", verbs) for form in ("verbs", "verb")] for t in range(topics)]
    thing = [new(f"object{t}.", objects) for t in range(topics)]
    chance = np.zeros((5 * topics, len(words)))
    follow = np.zeros((5 * topics, len(words)), np.int64)

    def may(state: int, chosen: np.ndarray, probability: float, then: int) -> None:
        zipf = 1 / np.arange(1, len(chosen) + 1)
        chance[state, chosen] = probability * zipf / zipf.sum()
        follow[state, chosen] = then

    for t in range(topics):
        begin, subject, object_next, object_last = t, topics + 2 * t, 3 * topics + t, 4 * topics + t
        for u in range(topics):
            topic = same_topic if u == t else (1 - same_topic) / (topics - 1)
            for number in (0, 1):
                may(begin, noun[u][number], topic / 2, topics + 2 * u + number)
        for number in (0, 1):
            state = subject + number
            may(state, adverb, before_verb, state)
            may(state, verb[t][number], 1 - before_verb, object_next)
        may(object_next, adverb, before_object, object_next)
        may(object_next, thing[t], 1 - before_object, object_last)
        may(object_last, thing[t], more_objects, object_last)
        may(object_last, np.array([0]), 1 - more_objects, begin)
    return Source(chance, follow, words)


def sample(source: Source, tokens: int, *, seed: int) -> np.ndarray:
    """Return a text of so many tokens, int32."""
    total = [row.tolist() for row in source.chance.cumsum(1)]
    follow = source.follow.tolist()
    last = len(source.words) - 1
    text = np.empty(tokens, np.int32)
    state = 0
    for place, drawn in enumerate(np.random.default_rng(seed).random(tokens).tolist()):
        row = total[state]
        word = min(bisect_right(row, drawn * row[-1]), last)
        text[place] = word
        state = follow[state][word]
    return text


def text_perplexity(source: Source, text: np.ndarray) -> float:
    """Return the chain's own perplexity on `text` after its first token: the floor of every model.

    A model that has not seen the text is better than this by a factor of exp(x / tokens) with probability
    at most exp(-x), since the expected ratio of its likelihood to the chain's is one (Ville 1939).
    """
    state, states = 0, np.empty(len(text), np.int64)
    follow = source.follow.tolist()
    for place, word in enumerate(text.tolist()):
        states[place] = state
        state = follow[state][word]
    return float(np.exp(-np.log(source.chance[states, text])[1:].mean()))


def perplexities(source: Source) -> Perplexities:
    """Return the exact references, from the stationary distribution of the chain."""
    chance, follow, _ = source
    states, words = chance.shape
    moves = np.zeros((states, states))
    for state in range(states):
        np.add.at(moves[state], follow[state], chance[state])
    equations = np.vstack([moves.T - np.eye(states), np.ones(states)])
    stationary = np.linalg.lstsq(equations, np.eye(states + 1)[states], rcond=None)[0]
    optimum = stationary @ np.array([_entropy(row) for row in chance])

    # Probability of each pair of words together with the state after it, and of each word with its state.
    after_one = np.zeros((words, states))
    np.add.at(after_one, (np.arange(words)[None, :], follow), stationary[:, None] * chance)
    unigram = _entropy(after_one.sum(1))
    bigram = _next_word(after_one, source)
    trigram = _next_word(_one_word_later(after_one, source), source)
    return Perplexities(*(float(np.exp(nats)) for nats in (optimum, trigram, bigram, unigram)))


def _next_word(belief: np.ndarray, source: Source) -> float:
    """Return the entropy of the next word given the context; `belief` [contexts, states] is their joint."""
    weight = belief.sum(1)
    return sum(w * _entropy(row @ source.chance / w) for row, w in zip(belief, weight, strict=True) if w)


def _one_word_later(belief: np.ndarray, source: Source) -> np.ndarray:
    """Return the joint of state and context where the context is one word longer."""
    later = []
    for row in belief:
        joint = row[:, None] * source.chance
        state, word = np.nonzero(joint)
        both = np.zeros((len(source.words), len(row)))
        np.add.at(both, (word, source.follow[state, word]), joint[state, word])
        later.append(both[np.unique(word)])
    return np.concatenate(later)


def _entropy(chance: np.ndarray) -> float:
    positive = chance[chance > 0]
    return float(-(positive * np.log(positive)).sum())
