// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// These are the forms of a command's output.
const (
	outputMerge = "merge"
	outputPatch = "patch"
)

// mostCopied limits what the copy operations of one patch may add, in bytes.
const mostCopied = 1 << 20

func (p *Patch) validate() (err error) {
	if p == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("it cannot be read: %v", v)
		}
	}()
	if len(p.Merge) > 0 && !isObject(p.Merge) {
		return errors.New("merge must be an object")
	}
	if len(p.Patch) == 0 {
		return nil
	}
	_, err = jsonpatch.DecodePatch(p.Patch)
	return err
}

func isObject(data []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) }

// apply returns the changed document. A nil patch changes nothing. The library panics on some
// patches (FuzzPatch has them). apply catches this, because a DEL must still reach the plugin.
func (p *Patch) apply(doc []byte) (out []byte, err error) {
	if p == nil {
		return doc, nil
	}
	defer func() {
		if v := recover(); v != nil {
			out, err = nil, fmt.Errorf("apply patch: the library that applies it panicked: %v", v)
		}
	}()
	if len(p.Merge) > 0 {
		if doc, err = jsonpatch.MergePatch(doc, p.Merge); err != nil {
			return nil, fmt.Errorf("apply merge patch: %w", err)
		}
	}
	if len(p.Patch) > 0 {
		if doc, err = operate(doc, p.Patch); err != nil {
			return nil, fmt.Errorf("apply patch: %w", err)
		}
	}
	if !isObject(doc) {
		return nil, errors.New("apply patch: the result is no object")
	}
	return doc, nil
}

func operate(doc, operations []byte) ([]byte, error) {
	patch, err := jsonpatch.DecodePatch(operations)
	if err != nil {
		return nil, err
	}
	options := jsonpatch.NewApplyOptions()
	options.AccumulatedCopySizeLimit = mostCopied
	return patch.ApplyWithOptions(doc, options)
}

// patchOf turns a command's output into a patch. If the command printed nothing, patchOf returns nil.
func (c *Command) patchOf(stdout []byte) (*Patch, error) {
	if len(bytes.TrimSpace(stdout)) == 0 {
		return nil, nil
	}
	p := &Patch{Merge: json.RawMessage(stdout)}
	if c.Output == outputPatch {
		p = &Patch{Patch: json.RawMessage(stdout)}
	}
	if !json.Valid(stdout) {
		return nil, fmt.Errorf("its output is no JSON: %.200q", stdout)
	}
	return p, p.validate()
}

// patchConfig changes the configuration of the plugin. A runtime may leave out keys in DEL that
// it gave to ADD. So a DEL runs even if a patch cannot be applied.
func (w *wrapped) patchConfig() error {
	err := w.changeConfig(w.conf.Config)
	if err != nil && w.request.Verb == spec.Del {
		kernel.Warn(w.request, err)
		return nil
	}
	return err
}

func (w *wrapped) changeConfig(p *Patch) error {
	if p == nil {
		return nil
	}
	doc, err := w.Config(nil)
	if err != nil {
		return err
	}
	if doc, err = p.apply(doc); err != nil {
		return spec.Invalid("configuration of %s: %w", w.Type, err)
	}
	return w.SetConfig(doc)
}

// changeResult returns a changed copy of the result. changeResult validates the copy like a
// plugin's result.
func (w *wrapped) changeResult(result *spec.Result, p *Patch) (*spec.Result, error) {
	if p == nil {
		return result, nil
	}
	doc, err := result.Encode(w.request.Version)
	if err != nil {
		return nil, err
	}
	if doc, err = p.apply(doc); err != nil {
		return nil, spec.Invalid("result of %s: %w", w.Type, err)
	}
	changed, err := spec.ParseResult(doc, w.request.Version)
	if err == nil {
		err = changed.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("result of %s: %w", w.Type, err)
	}
	return changed, nil
}
