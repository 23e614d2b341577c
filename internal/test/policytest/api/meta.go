// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"time"
)

// ObjectMeta is what all objects have.
type ObjectMeta struct {
	Name              string            `json:"name,omitempty"`
	Namespace         string            `json:"namespace,omitempty"`
	UID               string            `json:"uid,omitempty"`
	DeletionTimestamp *time.Time        `json:"deletionTimestamp,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
}

// LabelSelector matches an object that has all labels and for which all expressions hold.
type LabelSelector struct {
	MatchLabels      map[string]string          `json:"matchLabels,omitempty"`
	MatchExpressions []LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// LabelSelectorRequirement is an expression about the label with a key.
type LabelSelectorRequirement struct {
	Key      string                `json:"key"`
	Operator LabelSelectorOperator `json:"operator"`
	Values   []string              `json:"values,omitempty"`
}

// LabelSelectorOperator is how a label is compared with the values.
type LabelSelectorOperator string

// These are the operators.
const (
	LabelSelectorOpIn           LabelSelectorOperator = "In"
	LabelSelectorOpNotIn        LabelSelectorOperator = "NotIn"
	LabelSelectorOpExists       LabelSelectorOperator = "Exists"
	LabelSelectorOpDoesNotExist LabelSelectorOperator = "DoesNotExist"
)

// IntOrString is a number, or a name if StrVal is not empty. In JSON it is the one or the other.
type IntOrString struct {
	IntVal int32
	StrVal string
}

// MarshalJSON returns the name or the number.
func (v IntOrString) MarshalJSON() ([]byte, error) {
	if v.StrVal != "" {
		return json.Marshal(v.StrVal)
	}
	return json.Marshal(v.IntVal)
}

// UnmarshalJSON reads a name or a number.
func (v *IntOrString) UnmarshalJSON(text []byte) error {
	*v = IntOrString{}
	if text[0] == '"' {
		return json.Unmarshal(text, &v.StrVal)
	}
	return json.Unmarshal(text, &v.IntVal)
}
