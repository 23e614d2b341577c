// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// schema is a JSON schema with the keywords that the chart's has. Another keyword is an error, so
// that none is ignored here and applied by Helm.
type schema struct {
	Schema     string             `json:"$schema"`
	Type       string             `json:"type"`
	Properties map[string]*schema `json:"properties"`
	Additional json.RawMessage    `json:"additionalProperties"` // false, or a schema
	Items      *schema            `json:"items"`
	MinItems   int                `json:"minItems"`
	Unique     bool               `json:"uniqueItems"`
	Enum       []string           `json:"enum"`
	Pattern    string             `json:"pattern"`
	MinLength  int                `json:"minLength"`
	Minimum    *float64           `json:"minimum"`
	Maximum    *float64           `json:"maximum"`
}

// Validate checks values by the chart's schema, as Helm does before it renders the chart.
func Validate(values map[string]any) error {
	root, err := reftest.Root()
	if err != nil {
		return err
	}
	f, err := os.Open(root + "/daemons/dist/kubernetes/chart/values.schema.json")
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it is only read
	s, d := new(schema), json.NewDecoder(f)
	d.DisallowUnknownFields()
	if err := d.Decode(s); err != nil {
		return fmt.Errorf("read the schema: %w", err)
	}
	text, err := json.Marshal(values) // so that all numbers, lists and objects have one type each
	if err != nil {
		return err
	}
	var plain any
	if err := json.Unmarshal(text, &plain); err != nil {
		return err
	}
	return s.check("values", plain)
}

func (s *schema) check(at string, v any) error {
	switch v := v.(type) {
	case map[string]any:
		return s.object(at, v)
	case []any:
		return s.array(at, v)
	case string:
		return s.text(at, v)
	case float64:
		whole := v == float64(int64(v))
		if s.Type != "integer" || !whole || s.Minimum != nil && v < *s.Minimum || s.Maximum != nil && v > *s.Maximum {
			return fmt.Errorf("%s: %v is not allowed", at, v)
		}
		return nil
	}
	if _, is := v.(bool); !is || s.Type != "boolean" {
		return fmt.Errorf("%s: want %s, got %v", at, s.Type, v)
	}
	return nil
}

func (s *schema) object(at string, v map[string]any) error {
	if s.Type != "object" {
		return fmt.Errorf("%s: want %s, got an object", at, s.Type)
	}
	for key, value := range v {
		of := s.Properties[key]
		if of == nil && string(s.Additional) == "false" {
			return fmt.Errorf("%s: %s is not a value of this chart", at, key)
		}
		if of == nil {
			of = new(schema)
			if len(s.Additional) == 0 {
				continue
			}
			if err := json.Unmarshal(s.Additional, of); err != nil {
				return err
			}
		}
		if err := of.check(at+"."+key, value); err != nil {
			return err
		}
	}
	return nil
}

func (s *schema) array(at string, v []any) error {
	if s.Type != "array" || len(v) < s.MinItems {
		return fmt.Errorf("%s: want %s with %d entries or more, got %v", at, s.Type, s.MinItems, v)
	}
	for i, x := range v {
		if s.Unique && slices.ContainsFunc(v[:i], func(y any) bool { return reflect.DeepEqual(x, y) }) {
			return fmt.Errorf("%s: %v is there twice", at, x)
		}
		if err := s.Items.check(at+"[]", x); err != nil {
			return err
		}
	}
	return nil
}

func (s *schema) text(at, v string) error {
	if s.Type != "string" || len(s.Enum) > 0 && !slices.Contains(s.Enum, v) || len(v) < s.MinLength {
		return fmt.Errorf("%s: %q is not allowed", at, v)
	}
	ok, err := regexp.MatchString(s.Pattern, v)
	if err == nil && !ok {
		err = fmt.Errorf("%s: %q does not match %s", at, v, s.Pattern)
	}
	return err
}
