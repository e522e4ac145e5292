"""The paper's algorithms and bounds, under its names and numbers. Nothing else of fedpca uses them.

"Federated Principal Component Analysis", Grammenos, Mendoza-Smith, Crowcroft, Mascolo, NeurIPS 2020.
"""
