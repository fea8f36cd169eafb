"""Labels: tables of present, absent and unknown labels, and everything that reads, writes and changes them.

table       Table: the known labels of N images × C classes; their counts and co-occurrences
labels      Labels: rows with source and score, in the order they were written, and their tables: labels to train on,
            and those that may evaluate, which no model made
names       Names: the ordered names of images or classes
formats/    readers and writers of label files, one module per format
policy      Policy: what the user states about a label file because the file does not say it
audit       LabelImport and Audit: the result of reading a file and how each raw value was read
drop        protocols that hide or corrupt labels
rules       implications and exclusions between classes
split       stratified splits
"""
