// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package invoke calls one plugin. Invoker is the interface. Exec in this package starts the
// program that it finds in CNI_PATH; plugin.Builtin calls a Go function in this process. A
// test checks that both return the same bytes.
package invoke

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/spec"
)

// Invoker calls the plugin with the given type and returns its standard output. If the plugin
// reports an error, Invoke returns a *spec.Error with the plugin's code.
type Invoker interface {
	Invoke(ctx context.Context, pluginType string, call *spec.Call) ([]byte, error)
}

// ErrNotFound means that no directory of the path holds the plugin.
var ErrNotFound = errors.New("plugin not found")

// Find returns the first regular file named pluginType in dirs. Like libcni, it ignores the
// execute bit and follows symbolic links.
func Find(pluginType string, dirs []string) (string, error) {
	if err := spec.ValidatePluginType(pluginType); err != nil {
		return "", err
	}
	if len(dirs) == 0 {
		return "", notFound("no paths provided")
	}
	for _, dir := range dirs {
		full := filepath.Join(dir, pluginType)
		if fi, err := os.Stat(full); err == nil && fi.Mode().IsRegular() {
			return full, nil
		}
	}
	return "", notFound(fmt.Sprintf("failed to find plugin %q in path [%s]", pluginType, strings.Join(dirs, " ")))
}

// notFoundError matches ErrNotFound. It has libcni's text, because runtimes search for that text.
type notFoundError struct{ msg string }

func notFound(msg string) error          { return &notFoundError{msg} }
func (e *notFoundError) Error() string   { return e.msg }
func (e *notFoundError) Is(t error) bool { return t == ErrNotFound }

// Within calls a plugin and ends the call after limit. Its error names the limit. With Within, a
// GC goes on to the other plugins when one plugin hangs.
func Within(ctx context.Context, limit time.Duration, in Invoker, pluginType string, call *spec.Call) ([]byte, error) {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := in.Invoke(bounded, pluginType, call)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%s did not end within %v: %w", call.Verb, limit, err)
	}
	return out, err
}
