// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"slices"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// Matches tells whether a selector selects an object with these labels. All requirements must
// hold, so an empty selector selects every object.
func Matches(s *api.LabelSelector, labels map[string]string) bool {
	for key, value := range s.MatchLabels {
		if has, ok := labels[key]; !ok || has != value {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		if !holds(e, labels) {
			return false
		}
	}
	return true
}

// holds checks one expression. NotIn and DoesNotExist hold for an object without the key.
func holds(e api.LabelSelectorRequirement, labels map[string]string) bool {
	value, ok := labels[e.Key]
	switch e.Operator {
	case api.LabelSelectorOpIn:
		return ok && slices.Contains(e.Values, value)
	case api.LabelSelectorOpNotIn:
		return !ok || !slices.Contains(e.Values, value)
	case api.LabelSelectorOpExists:
		return ok
	case api.LabelSelectorOpDoesNotExist:
		return !ok
	default:
		return false
	}
}
