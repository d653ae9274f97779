"""A Markov chain that generates text, so that the best possible perplexity is known exactly.

Sentences like "nouns3.1 adverb0 adverb7 verb3.0 object3.2" have a topic, which tends to stay from sentence to
sentence, and a number. Verb and objects share the subject's topic. The verb agrees with its number, over any
count of adverbs in between. A model must remember what no neighbouring word shows.
"""

from bisect import bisect_right
from typing import NamedTuple

import numpy as np


class Language(NamedTuple):
    """Probability [states, words] of the next word, the state after it [states, words], and the words.

    A text begins in state 0.
    """

    probability: np.ndarray
    next_state: np.ndarray
    words: list[str]


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
) -> Language:
    """Return the language with `nouns`, `verbs`, `objects` a topic and `adverbs` common to all topics.

    - same_topic: probability that a sentence keeps the topic. The other topics are equally likely.
    - before_verb, before_object: probability of an adverb, and after it of another one.
    - more_objects: probability of another object after an object.

    Within a class of words the i-th has a probability proportional to 1/i (Zipf). Singular and plural are
    equally likely.
    """
    words = ["<eos>", *(f"adverb{i}" for i in range(adverbs))]

    def new_words(kind: str, count: int) -> np.ndarray:
        words.extend(f"{kind}{i}" for i in range(count))
        return np.arange(len(words) - count, len(words))

    adverb = np.arange(1, len(words))
    noun = [[new_words(f"{form}{t}.", nouns) for form in ("noun", "nouns")] for t in range(topics)]
    verb = [[new_words(f"{form}{t}.", verbs) for form in ("verbs", "verb")] for t in range(topics)]
    thing = [new_words(f"object{t}.", objects) for t in range(topics)]
    probability = np.zeros((5 * topics, len(words)))
    next_state = np.zeros((5 * topics, len(words)), np.int64)

    def allow(state: int, chosen: np.ndarray, total: float, then: int) -> None:
        zipf = 1 / np.arange(1, len(chosen) + 1)
        probability[state, chosen] = total * zipf / zipf.sum()
        next_state[state, chosen] = then

    for t in range(topics):
        begin, subject, object_next, object_last = t, topics + 2 * t, 3 * topics + t, 4 * topics + t
        for number in (0, 1):
            for u in range(topics):
                topic = same_topic if u == t else (1 - same_topic) / (topics - 1)
                allow(begin, noun[u][number], topic / 2, topics + 2 * u + number)
            allow(subject + number, adverb, before_verb, subject + number)
            allow(subject + number, verb[t][number], 1 - before_verb, object_next)
        allow(object_next, adverb, before_object, object_next)
        allow(object_next, thing[t], 1 - before_object, object_last)
        allow(object_last, thing[t], more_objects, object_last)
        allow(object_last, np.array([0]), 1 - more_objects, begin)
    return Language(probability, next_state, words)


def sample(language: Language, tokens: int, *, seed: int) -> np.ndarray:
    """Return a text of so many tokens, int32."""
    cumulative, next_state = [row.tolist() for row in language.probability.cumsum(1)], language.next_state
    following, last = next_state.tolist(), len(language.words) - 1
    text, state = np.empty(tokens, np.int32), 0
    for position, drawn in enumerate(np.random.default_rng(seed).random(tokens).tolist()):
        row = cumulative[state]
        text[position] = word = min(bisect_right(row, drawn * row[-1]), last)
        state = following[state][word]
    return text


def optimum(language: Language) -> float:
    """Return the perplexity of the best possible model, which observes the state: exp of the entropy rate.

    As the words determine the state, the rate is the mean entropy of the states' words under the chain's
    stationary distribution (Shannon 1948, section 7).
    """
    probability, next_state, _ = language
    states = len(probability)
    transition = np.zeros((states, states))
    for state in range(states):
        np.add.at(transition[state], next_state[state], probability[state])
    equations = np.vstack([transition.T - np.eye(states), np.ones(states)])
    stationary = np.linalg.lstsq(equations, np.eye(states + 1)[states], rcond=None)[0]
    logarithm = np.log(probability, where=probability > 0, out=np.zeros_like(probability))
    return float(np.exp(-stationary @ (probability * logarithm).sum(1)))


def perplexity(language: Language, text: np.ndarray) -> float:
    """Return the language's perplexity on `text` after its first token: the floor for every model.

    A model that has not seen the text is better by a factor of exp(x / tokens) with probability at most
    exp(-x). The reason is that the expected ratio of its likelihood to the language's is one (Ville 1939).
    """
    following, state, states = language.next_state.tolist(), 0, np.empty(len(text), np.int64)
    for position, word in enumerate(text.tolist()):
        states[position] = state
        state = following[state][word]
    return float(np.exp(-np.log(language.probability[states, text])[1:].mean()))
