# Reads a model file of fedpca, and gives the scores of rows. From docs/reference/model-file.md; needs jsonlite.
# Rscript examples/read_model.R MODEL ROWS.csv SCORES.csv

read_model <- function(path) {
  file <- file(path, "rb")
  on.exit(close(file))
  size <- sum(readBin(file, "integer", 8, size = 1, signed = FALSE) * 256^(0:7))
  header <- jsonlite::fromJSON(rawToChar(readBin(file, "raw", size)), simplifyVector = FALSE)
  bytes <- readBin(file, "raw", file.size(path) - 8 - size)
  ours <- jsonlite::fromJSON(header[["__metadata__"]]$fedpca)
  stopifnot(ours$format_version == 1, ours$kind %in% c("subspace", "moments"))
  model <- c(list(kind = ours$kind), jsonlite::fromJSON(ours$facts))
  if (!is.null(model$parts)) stop("the rows of this model do not all know the same features")
  for (name in setdiff(names(header), "__metadata__")) {
    tensor <- header[[name]]
    at <- unlist(tensor$data_offsets)
    width <- if (tensor$dtype == "F64") 8 else 4
    size <- at[2] - at[1]
    values <- readBin(bytes[seq_len(size) + at[1]], "double", size / width, width, endian = "little")
    model[[name]] <- if (length(tensor$shape) == 2) matrix(values, tensor$shape[[1]], byrow = TRUE) else values
  }
  if (model$kind == "moments") {  # its directions are the eigenvectors of the scatter
    if (!is.null(model$certificate)) stop("save a private model as a Subspace first")
    unit <- rep(1, length(model$mean))
    if (is.character(model$scale)) {  # then mean and scatter are not divided yet
      own <- !is.null(model$scaling.observed)  # entries were missing, or rows not centered
      mean <- if (own) model$scaling.mean else model$mean
      variance <- if (own) model$scaling.variance else diag(model$scatter) / model$count
      unit <- switch(model$scale, std = sqrt(variance), binomial = sqrt(mean * (1 - mean / 2)))
      unit[unit == 0] <- 1
      model$scale <- unit
    }
    found <- eigen(model$scatter / outer(unit, unit), symmetric = TRUE)
    model$mean <- model$mean / unit
    model$components <- t(found$vectors)
    model$singular_values <- sqrt(pmax(found$values, 0))
  }
  model
}

scores <- function(model, rows) {
  if (!is.null(model$feature_names)) {
    lacking <- setdiff(model$feature_names, colnames(rows))
    if (length(lacking)) stop("the rows lack features of the model: ", toString(lacking))
    rows <- rows[, model$feature_names, drop = FALSE]
  }
  rows <- as.matrix(rows)
  if (ncol(rows) != length(model$mean)) stop("the model has ", length(model$mean), " features, the rows ", ncol(rows))
  n <- if (is.null(model$n_components)) nrow(model$components) else model$n_components
  if (!is.null(model$scale)) rows <- sweep(rows, 2, model$scale, "/")
  sweep(rows, 2, model$mean) %*% t(model$components[seq_len(n), , drop = FALSE])
}

paths <- commandArgs(trailingOnly = TRUE)
if (length(paths) == 3) {
  found <- scores(read_model(paths[1]), read.csv(paths[2], check.names = FALSE))
  write.table(format(found, digits = 17), paths[3], sep = ",", row.names = FALSE, col.names = FALSE,
              quote = FALSE)
}
