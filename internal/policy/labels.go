// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Labels are the labels of an object, sorted by key. A slice takes less memory than a map, and
// pods of one workload can share it.
type Labels []Label

// Label is one label.
type Label struct{ Key, Value string }

// LabelsOf sorts labels.
func LabelsOf(m map[string]string) Labels {
	l := make(Labels, 0, len(m))
	for k, v := range m {
		l = append(l, Label{k, v})
	}
	slices.SortFunc(l, func(a, b Label) int { return cmp.Compare(a.Key, b.Key) })
	return l
}

// UnmarshalJSON reads the API's object of strings.
func (l *Labels) UnmarshalJSON(text []byte) error {
	var m map[string]string
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	*l = LabelsOf(m)
	return nil
}

// MarshalJSON writes the API's object of strings.
func (l Labels) MarshalJSON() ([]byte, error) {
	m := make(map[string]string, len(l))
	for _, label := range l {
		m[label.Key] = label.Value
	}
	return json.Marshal(m)
}

// Get returns the value of a label.
func (l Labels) Get(key string) (value string, ok bool) {
	for i := range l {
		if l[i].Key == key {
			return l[i].Value, true
		}
	}
	return "", false
}

// String returns "app=web, role=db".
func (l Labels) String() string {
	words := make([]string, len(l))
	for i, label := range l {
		words[i] = label.Key + "=" + word(label.Value)
	}
	return strings.Join(words, ", ")
}

// word quotes a text that is not a valid value of a label. Selectors of old objects may contain such text, and
// two different selectors must not have the same text.
func word(value string) string {
	for i := range len(value) {
		c := value[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return strconv.Quote(value)
		}
	}
	return value
}

// Selector selects objects by their labels, as the API's LabelSelector. An empty selector
// selects every object.
type Selector struct {
	MatchLabels      Labels        `json:"matchLabels,omitempty"`
	MatchExpressions []Requirement `json:"matchExpressions,omitempty"`
}

// Requirement is one element of matchExpressions.
type Requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

// These are the operators. NotIn and DoesNotExist match an object without the label.
const (
	In           = "In"
	NotIn        = "NotIn"
	Exists       = "Exists"
	DoesNotExist = "DoesNotExist"
)

// Empty reports whether the selector selects every object.
func (s Selector) Empty() bool { return len(s.MatchLabels)+len(s.MatchExpressions) == 0 }

// Matches reports whether the selector selects an object with these labels.
func (s Selector) Matches(l Labels) bool {
	for _, want := range s.MatchLabels {
		if v, ok := l.Get(want.Key); !ok || v != want.Value {
			return false
		}
	}
	for _, r := range s.MatchExpressions {
		if !r.matches(l) {
			return false
		}
	}
	return true
}

func (r Requirement) matches(l Labels) bool {
	v, ok := l.Get(r.Key)
	switch r.Operator {
	case In:
		return ok && slices.Contains(r.Values, v)
	case NotIn:
		return !ok || !slices.Contains(r.Values, v)
	case Exists:
		return ok
	case DoesNotExist:
		return !ok
	}
	return false // check refuses it
}

// check refuses what the API server would refuse, such as an operator of a later version.
func (s Selector) check() error {
	for _, r := range s.MatchExpressions {
		if err := r.check(); err != nil {
			return err
		}
	}
	return nil
}

func (r Requirement) check() error {
	switch r.Operator {
	case In, NotIn:
		if len(r.Values) == 0 {
			return fmt.Errorf("operator %s of label %q needs values", r.Operator, r.Key)
		}
	case Exists, DoesNotExist:
		if len(r.Values) > 0 {
			return fmt.Errorf("operator %s of label %q takes no values", r.Operator, r.Key)
		}
	default:
		return fmt.Errorf("operator %q of label %q is not known", r.Operator, r.Key)
	}
	return nil
}

// keys returns the labels that the selector looks at.
func (s Selector) keys() (keys []string) {
	for _, l := range s.MatchLabels {
		keys = append(keys, l.Key)
	}
	for _, r := range s.MatchExpressions {
		keys = append(keys, r.Key)
	}
	return keys
}

// String returns "app=web, role in (a, b), !old". Two selectors with the same terms have the
// same text, whatever their order.
func (s Selector) String() string {
	var words []string
	for _, l := range s.MatchLabels {
		words = append(words, l.Key+"="+word(l.Value))
	}
	for _, r := range s.MatchExpressions {
		words = append(words, r.String())
	}
	slices.Sort(words)
	return strings.Join(slices.Compact(words), ", ")
}

// String returns the requirement as kubectl writes it.
func (r Requirement) String() string {
	var values []string
	for _, v := range r.Values {
		values = append(values, word(v))
	}
	slices.Sort(values)
	values = slices.Compact(values)
	switch r.Operator {
	case In:
		return r.Key + " in (" + strings.Join(values, ", ") + ")"
	case NotIn:
		return r.Key + " notin (" + strings.Join(values, ", ") + ")"
	case DoesNotExist:
		return "!" + r.Key
	}
	return r.Key
}
