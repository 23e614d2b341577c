// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// matches tells whether a selector selects an object with these labels. All requirements must
// hold, so an empty selector selects every object.
func matches(s *metav1.LabelSelector, labels map[string]string) bool {
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
func holds(e metav1.LabelSelectorRequirement, labels map[string]string) bool {
	value, ok := labels[e.Key]
	switch e.Operator {
	case metav1.LabelSelectorOpIn:
		return ok && slices.Contains(e.Values, value)
	case metav1.LabelSelectorOpNotIn:
		return !ok || !slices.Contains(e.Values, value)
	case metav1.LabelSelectorOpExists:
		return ok
	case metav1.LabelSelectorOpDoesNotExist:
		return !ok
	default:
		return false
	}
}
