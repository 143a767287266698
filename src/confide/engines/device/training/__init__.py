"""How the sampled clients' local steps are computed, for all of a round at once.

cohort     what a way of training is told of a round
direct     a network's gradients, client by client side by side
margins    linear, logistic and softmax regression in closed form
"""
