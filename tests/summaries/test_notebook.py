"""What notebooks show of models: never an error, no scripts, text that stays text."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers import power_law
from sklearn import config_context
from sklearn.base import clone

from fedpca import FederatedPCA, Moments, Privacy, PrivatePCA, StreamingPCA, Subspace
from fedpca.summaries.certificate import Certificate


def rows(n_rows=200, n_features=6):
    return power_law(np.random.default_rng(0), n_rows, n_features)


def card(text):
    """The last card of a representation, parsed; it has no scripts and no links."""
    text = text[text.rindex('<div style="display:inline-block') :]
    assert not re.search(r"<script|<style|href|url\(|\sid=", text)
    assert len(text) < 10_000
    return ElementTree.fromstring(text)


def privacy():
    return Privacy(2.0, 1e-5, bound=4.0, center=None, evaluate=False)


@pytest.mark.parametrize(
    ("summary", "facts"),
    [
        (Subspace.from_rows(rows(), 1), "Subspace200 rows · 6 features · 1 component, "),
        (Subspace.from_rows(rows(), scale="std"), "100% of the variance · features divided by their scale"),
        (Subspace.empty(4), "0 rows · 4 features · 0 components"),
        (Subspace.from_rows(np.ones((1, 3))), "1 row · 3 features · 0 components"),
        (Moments.from_rows(rows(), scale="std"), "Moments200 rows · 6 features · features divided"),
        (Moments(0.0, np.zeros(3), np.zeros((3, 3))), "Moments0 rows · 3 features"),
    ],
)
def test_summaries_are_shown_as_facts(summary, facts):
    assert facts in "".join(card(summary._repr_html_()).itertext())


def test_a_certificate_is_stated_and_text_is_escaped():
    summary = Subspace.from_rows(rows()).with_about(names=[f"<script>{i}" for i in range(6)])
    stated = summary.with_about(certificate=Certificate(True, 1.0, 1e-6, 0.2, warnings=("<script>",)))
    text = "".join(card(stated._repr_html_()).itertext())
    assert "private: epsilon=1, delta=1e-06, UNSAFE" in text


def bundle(estimator):
    shown = estimator._repr_mimebundle_()
    assert shown["text/plain"] == repr(estimator)
    without_ids = re.compile(r"id-\d+")  # scikit-learn counts what it shows
    assert without_ids.sub("", shown["text/html"]) == without_ids.sub("", estimator._repr_html_())
    return shown["text/html"]


@pytest.mark.parametrize(
    "estimator", [StreamingPCA(2), FederatedPCA(2), PrivatePCA(2, **privacy().settings).partial_fit(rows())]
)
def test_before_there_is_a_model_only_the_diagram_is_shown(estimator):
    text = bundle(estimator)
    assert "sk-top-container" in text
    assert "Fitted model" not in text


def test_fitted_estimators_show_diagram_and_model():
    pca = StreamingPCA(2).fit(rows())
    text = bundle(pca)
    assert "sk-top-container" in text
    assert "2 components" in "".join(card(text).itertext())
    assert "Fitted model" not in bundle(clone(pca))


def test_private_estimators_show_what_was_released():
    pca = PrivatePCA(2, **privacy().settings).partial_fit(rows())
    pca.release()
    assert "private: epsilon=2, delta=1e-05" in "".join(card(bundle(pca)).itertext())


def test_federated_estimators_show_their_clients():
    clients = {f"client {c}": rows()[c::3] for c in range(3)}
    assert "3 clients" in "".join(card(bundle(FederatedPCA(2).fit_clients(clients))).itertext())


def test_scikit_learns_setting_is_respected():
    with config_context(display="text"):
        pca = StreamingPCA(2).fit(rows())
        assert "text/html" not in pca._repr_mimebundle_()
        assert not hasattr(pca, "_repr_html_")
