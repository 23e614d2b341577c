// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package once is for loops that meet the same failure again and again: it is
// logged once, until it changes.
package once

// Failure is what was heard last of one thing. The zero value has heard of no
// failure. It has no lock: whoever shares one holds a lock already, for what is
// told of.
type Failure struct {
	text string
}

// News notes err, which is nil when all is well, and reports whether that is another
// text than what it heard last; or, of nil, whether there was a failure to forget:
// the next one is news again. Errors are compared by what a reader would see.
func (f *Failure) News(err error) bool {
	was := f.text
	f.text = ""
	if err != nil {
		f.text = err.Error()
	}
	return f.text != was
}

// String is the text of the failure, "" when all is well.
func (f Failure) String() string { return f.text }
